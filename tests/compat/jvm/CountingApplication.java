import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts numbers by their last digit with Kafka Streams, exactly once.
 *
 * <pre>
 * source: 17 --> repartition topic, key 7 --> store with a changelog --> target: "2 17"
 * </pre>
 *
 * A record of the target is how many numbers of its key came so far, and the number that came last.
 * Arguments: bootstrap servers, folder of the state, source, target.
 */
public final class CountingApplication {
    private static final int KEYS = 10;

    public static void main(String[] arguments) {
        KafkaStreams streams = new KafkaStreams(
            topology(arguments[2], arguments[3]).build(), properties(arguments[0], arguments[1]));
        // The next process goes on from what this one has committed.
        streams.setStateListener((state, before) -> {
            if (state == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        streams.start();
    }

    private static StreamsBuilder topology(String source, String target) {
        Serde<String> strings = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(source, Consumed.with(strings, strings))
            .groupBy(
                (key, number) -> String.valueOf(Integer.parseInt(number) % KEYS),
                Grouped.with("by-digit", strings, strings))
            .aggregate(
                () -> "0",
                (key, number, last) -> count(last) + 1 + " " + number,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("counts")
                    .withKeySerde(strings)
                    .withValueSerde(strings)
                    // Every count goes on, not only the last of a commit.
                    .withCachingDisabled())
            .toStream()
            .to(target, Produced.with(strings, strings));
        return builder;
    }

    private static long count(String value) {
        return Long.parseLong(value.split(" ")[0]);
    }

    private static Properties properties(String bootstrap, String folder) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "counting");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        properties.put(
            StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 6000);
        return properties;
    }
}
