import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A transactional producer of Kafka's clients at its own speed; see bench/comparison/transactions.py.
 *
 * <p>Arguments: bootstrap, topic, transactional id, partitions, records in a transaction, bytes of a
 * record, batch.size. "ready" is printed once the producer has its identity. Each line on stdin is a
 * number of seconds: for so long it makes one transaction after the other, then prints how long each
 * commit took, in microseconds, on one line.
 */
public final class Transactions {
    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int partitions;
    private final int records;
    private final byte[] value;
    private int next = 0;

    private Transactions(String[] arguments) {
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[3]);
        records = Integer.parseInt(arguments[4]);
        value = new byte[Integer.parseInt(arguments[5])];
        new Random(1).nextBytes(value);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", arguments[2]);
        properties.put("batch.size", arguments[6]);
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        producer = new KafkaProducer<>(properties);
        producer.initTransactions();
    }

    /**
     * Makes transactions for some time; returns how long each commit took, in microseconds. One that
     * the broker refuses is aborted, said on stderr and not counted.
     */
    private long[] run(double seconds) {
        long[] commits = new long[1024];
        int count = 0;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            producer.beginTransaction();
            for (int i = 0; i < records; i++) {
                producer.send(new ProducerRecord<>(topic, next, null, value));
                next = next + 1 < partitions ? next + 1 : 0;
            }
            long began = System.nanoTime();
            try {
                // It raises what a record of the transaction failed with.
                producer.commitTransaction();
            } catch (KafkaException error) {
                // As an application does; it raises if the producer is fenced.
                System.err.println("a transaction is aborted: " + error);
                producer.abortTransaction();
                continue;
            }
            if (count == commits.length) {
                commits = Arrays.copyOf(commits, 2 * count);
            }
            commits[count++] = (System.nanoTime() - began) / 1000;
        }
        return Arrays.copyOf(commits, count);
    }

    public static void main(String[] arguments) throws Exception {
        Transactions client = new Transactions(arguments);
        System.out.println("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            StringBuilder answer = new StringBuilder();
            for (long commit : client.run(Double.parseDouble(order))) {
                answer.append(commit).append(' ');
            }
            System.out.println(answer);
        }
        client.producer.close();
    }
}
