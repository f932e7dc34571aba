import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits, aborts and is fenced, with offsets of a group in its transactions; then goes on after a
 * batch that has expired, and is fenced where it commits later than its transaction's timeout.
 *
 * Runs with any client since 2.5; ends with an error at the first promise that does not hold.
 * Arguments: bootstrap servers, a topic with one partition. When it prints "pause" and "resume", the
 * broker must have paused, or gone on, before it reads a line.
 */
public final class TransactionalClient {
    private static final String GROUP = "client";

    private final String bootstrap;
    private final TopicPartition partition;

    private TransactionalClient(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.partition = new TopicPartition(topic, 0);
    }

    public static void main(String[] arguments) throws Exception {
        TransactionalClient client = new TransactionalClient(arguments[0], arguments[1]);
        client.run();
        client.expire();
        client.oversleep();
        System.out.println("ok");
    }

    private void run() throws Exception {
        try (KafkaConsumer<String, String> member = consumer("read_committed");
                KafkaProducer<String, String> first = producer("client")) {
            first.initTransactions();
            send(first, member, "committed", 3);
            first.commitTransaction();
            expect(List.of("committed"), values("read_committed"));
            expect(3L, committed(member));

            send(first, member, "aborted", 5);
            first.abortTransaction();
            expect(List.of("committed"), values("read_committed"));
            expect(List.of("committed", "aborted"), values("read_uncommitted"));
            expect(3L, committed(member));

            send(first, member, "zombie", 7);
            try (KafkaProducer<String, String> second = producer("client")) {
                second.initTransactions();
                expectFenced(first);
                send(second, member, "successor", 9);
                second.commitTransaction();
            }
            expect(List.of("committed", "successor"), values("read_committed"));
            expect(9L, committed(member));
        }
    }

    /** What becomes of a batch is unknown once it expires: its transaction can only be aborted. */
    private void expire() throws Exception {
        try (KafkaProducer<String, String> producer = producer("expiring")) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "kept").get();
            producer.commitTransaction();

            producer.beginTransaction();
            send(producer, "lost").get();
            tell("pause");
            expectExpired(send(producer, "late"));
            tell("resume");
            expectAbortable(producer);
            producer.abortTransaction();

            producer.beginTransaction();
            send(producer, "again").get();
            producer.commitTransaction();
        }
        expect(List.of("committed", "successor", "kept", "again"), values("read_committed"));
    }

    /** The coordinator has aborted the transaction when it gets the commit. */
    private void oversleep() throws Exception {
        Map<String, Object> properties = properties("overslept");
        properties.put("transaction.timeout.ms", 1000);
        List<String> before = values("read_committed");
        try (KafkaProducer<String, String> producer = producer(properties)) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "overslept").get();
            while (end("read_committed") < end("read_uncommitted")) {
                Thread.sleep(100);
            }
            expectFenced(producer);
        }
        expect(before, values("read_committed"));
    }

    private long end(String isolation) {
        try (KafkaConsumer<String, String> reader = consumer(isolation)) {
            return reader.endOffsets(Collections.singletonList(partition)).get(partition);
        }
    }

    private static void tell(String wish) throws Exception {
        System.out.println(wish);
        if (System.in.read() < 0) {
            throw new AssertionError("nobody can " + wish + " the broker");
        }
    }

    private KafkaProducer<String, String> producer(String transactionalId) {
        return producer(properties(transactionalId));
    }

    private KafkaProducer<String, String> producer(Map<String, Object> properties) {
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private Map<String, Object> properties(String transactionalId) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", transactionalId);
        properties.put("request.timeout.ms", 3000);
        properties.put("delivery.timeout.ms", 10000);
        return properties;
    }

    private KafkaConsumer<String, String> consumer(String isolation) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", GROUP);
        properties.put("enable.auto.commit", false);
        properties.put("isolation.level", isolation);
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    /** Leaves a transaction open, whose record and offset the broker has. */
    private void send(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> member,
            String value,
            long offset) throws Exception {
        producer.beginTransaction();
        send(producer, value).get();
        producer.sendOffsetsToTransaction(
            Collections.singletonMap(partition, new OffsetAndMetadata(offset)),
            member.groupMetadata());
    }

    private Future<RecordMetadata> send(KafkaProducer<String, String> producer, String value) {
        return producer.send(new ProducerRecord<>(partition.topic(), value));
    }

    private long committed(KafkaConsumer<String, String> member) {
        return member.committed(Collections.singleton(partition)).get(partition).offset();
    }

    private List<String> values(String isolation) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = consumer(isolation)) {
            reader.assign(Collections.singletonList(partition));
            long end = reader.endOffsets(Collections.singletonList(partition)).get(partition);
            reader.seek(partition, 0);
            while (reader.position(partition) < end) {
                ConsumerRecords<String, String> records = reader.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<String, String> record : records) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }

    private static void expectFenced(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            return;
        }
        throw new AssertionError("a producer that was replaced has committed");
    }

    private static void expectExpired(Future<RecordMetadata> sent) throws Exception {
        try {
            sent.get();
        } catch (ExecutionException expected) {
            expect(TimeoutException.class, expected.getCause().getClass());
            return;
        }
        throw new AssertionError("a broker that had paused has answered");
    }

    private static void expectAbortable(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (KafkaException expected) {
            return;
        }
        throw new AssertionError("a transaction has committed without a batch that expired");
    }

    private static void expect(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
