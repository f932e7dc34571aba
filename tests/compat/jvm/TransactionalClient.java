import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits, aborts and is fenced, with offsets of a group in its transactions.
 *
 * Runs with any client since 2.5; ends with an error at the first promise that does not hold.
 * Arguments: bootstrap servers, a topic with one partition.
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
        new TransactionalClient(arguments[0], arguments[1]).run();
        System.out.println("ok");
    }

    private void run() throws Exception {
        try (KafkaConsumer<String, String> member = consumer("read_committed");
                KafkaProducer<String, String> first = producer()) {
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
            try (KafkaProducer<String, String> second = producer()) {
                second.initTransactions();
                expectFenced(first);
                send(second, member, "successor", 9);
                second.commitTransaction();
            }
            expect(List.of("committed", "successor"), values("read_committed"));
            expect(9L, committed(member));
        }
    }

    private KafkaProducer<String, String> producer() {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", "client");
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
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
        producer.send(new ProducerRecord<>(partition.topic(), value)).get();
        producer.sendOffsetsToTransaction(
            Collections.singletonMap(partition, new OffsetAndMetadata(offset)),
            member.groupMetadata());
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

    private static void expect(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
