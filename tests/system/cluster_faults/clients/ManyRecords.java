import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes and reads millions of records, and notes what it was told.
 *
 *     ManyRecords work BOOTSTRAP TOPIC PARTITIONS RECORDS_PER_S ACKNOWLEDGED READ    until SIGTERM
 *     ManyRecords read BOOTSTRAP TOPIC PARTITIONS FOUND                              all there is
 *
 * A record's value is its producer's generation (an int) and its number in its partition (a long).
 * A file has lines of `PARTITION OFFSET GENERATION NUMBER COUNT`, each for COUNT records, whose
 * offsets and numbers go up together.
 */
public final class ManyRecords {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final int VALUE_BYTES = 12;
    private static final long COMMIT_MS = 500;
    private static final long RUN_RECORDS_MAX = 10_000;

    private static volatile boolean isEnding = false;

    private final String bootstrap;
    private final String topic;
    private final int partitions;

    private ManyRecords(String[] arguments) {
        this.bootstrap = arguments[1];
        this.topic = arguments[2];
        this.partitions = Integer.parseInt(arguments[3]);
    }

    public static void main(String[] arguments) throws Exception {
        ManyRecords client = new ManyRecords(arguments);
        if (arguments[0].equals("read")) {
            client.readAll(arguments[4]);
            return;
        }
        CountDownLatch done = new CountDownLatch(2);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isEnding = true;
            try {
                done.await();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        start("produce", done, () -> client.produce(Long.parseLong(arguments[4]), arguments[5]));
        start("consume", done, () -> client.consume(arguments[6]));
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void start(String name, CountDownLatch done, Work work) {
        new Thread(() -> {
            try {
                work.run();
                done.countDown();
            } catch (Throwable failure) {
                failure.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }, name).start();
    }

    private void produce(long recordsPerSecond, String path) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", 20);
        settings.put("batch.size", 131_072);
        // Each record that waits takes many times its bytes beside its batch.
        settings.put("buffer.memory", 6_000_000L);
        settings.put("request.timeout.ms", 5000);
        // An idempotent producer that gives up a batch begins a new epoch.
        settings.put("delivery.timeout.ms", Integer.MAX_VALUE);
        settings.put("reconnect.backoff.max.ms", 500);
        ByteArraySerializer bytes = new ByteArraySerializer();
        int generation = (int) (System.currentTimeMillis() / 100);
        long[] numbers = new long[partitions];
        long began = System.nanoTime();
        long due = 0;
        try (Runs acknowledged = new Runs(path, partitions);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            while (!isEnding) {
                long now = (System.nanoTime() - began) / 1000 * recordsPerSecond / 1_000_000;
                // What became due while nothing could be sent is not made up for.
                long count = Math.min(now - due, recordsPerSecond / 10);
                due = now;
                for (long sent = 0; sent < count && !isEnding; sent++) {
                    int partition = (int) (sent % partitions);
                    long number = numbers[partition];
                    ByteBuffer value = ByteBuffer.allocate(VALUE_BYTES).putInt(generation).putLong(number);
                    producer.send(
                            new ProducerRecord<>(topic, partition, null, value.array()),
                            (told, failure) -> {
                                if (failure == null) {
                                    acknowledged.note(partition, told.offset(), generation, number);
                                }
                            });
                    numbers[partition]++;
                }
                Thread.sleep(10);
                acknowledged.flush();
            }
            producer.flush();
        }
    }

    private void consume(String path) throws Exception {
        Map<String, Object> settings = consumerSettings();
        settings.put("group.id", "group-" + topic);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        try (Runs read = new Runs(path, partitions);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long next = 0;
            while (!isEnding) {
                note(consumer.poll(POLL), read);
                if (System.currentTimeMillis() >= next) {
                    next = System.currentTimeMillis() + COMMIT_MS;
                    // What was read is told before it is committed.
                    read.flush();
                    consumer.commitAsync();
                }
            }
        }
    }

    private void readAll(String path) throws Exception {
        try (Runs found = new Runs(path, partitions);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consumerSettings())) {
            List<TopicPartition> places = new ArrayList<>();
            for (int number = 0; number < partitions; number++) {
                places.add(new TopicPartition(topic, number));
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            consumer.assign(places);
            consumer.seekToBeginning(places);
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                note(consumer.poll(POLL), found);
            }
        }
    }

    private Map<String, Object> consumerSettings() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "none");
        settings.put("max.poll.records", 20_000);
        settings.put("reconnect.backoff.max.ms", 500);
        return settings;
    }

    private static void note(ConsumerRecords<byte[], byte[]> records, Runs runs) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            ByteBuffer value = ByteBuffer.wrap(record.value());
            runs.note(record.partition(), record.offset(), value.getInt(), value.getLong());
        }
    }

    /** Of a file, which a kill of the process leaves with whole lines. */
    private static final class Runs implements AutoCloseable {
        private final OutputStream file;
        private final StringBuilder lines = new StringBuilder("\n");
        private final long[] offsets;
        private final int[] generations;
        private final long[] numbers;
        private final long[] counts;

        Runs(String path, int partitions) throws IOException {
            file = new FileOutputStream(path, true);
            offsets = new long[partitions];
            generations = new int[partitions];
            numbers = new long[partitions];
            counts = new long[partitions];
        }

        synchronized void note(int partition, long offset, int generation, long number) {
            long count = counts[partition];
            if (count == RUN_RECORDS_MAX
                    || offset != offsets[partition] + count
                    || generation != generations[partition]
                    || number != numbers[partition] + count) {
                end(partition);
                offsets[partition] = offset;
                generations[partition] = generation;
                numbers[partition] = number;
            }
            counts[partition]++;
        }

        private void end(int partition) {
            if (counts[partition] > 0) {
                lines.append(partition).append(' ').append(offsets[partition]).append(' ');
                lines.append(generations[partition]).append(' ').append(numbers[partition]).append(' ');
                lines.append(counts[partition]).append('\n');
                counts[partition] = 0;
            }
        }

        synchronized void flush() throws IOException {
            for (int partition = 0; partition < counts.length; partition++) {
                end(partition);
            }
            file.write(lines.toString().getBytes(StandardCharsets.US_ASCII));
            lines.setLength(0);
        }

        @Override
        public void close() throws IOException {
            flush();
            file.close();
        }
    }
}
