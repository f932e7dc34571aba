import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic with Apache Flink, exactly once, on a cluster within this process.
 *
 * A start goes on from the last checkpoint of the process before: it commits the transactions that
 * this one names, and aborts those that came later.
 * Arguments: bootstrap servers, folder of the checkpoints, source, target.
 */
public final class FlinkCopier {
    private static final int TASKS = 2;

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        Configuration configuration = configuration(folder);
        lastCheckpoint(folder).ifPresent(checkpoint ->
            configuration.setString("execution.state-recovery.path", checkpoint.toUri().toString()));
        StreamExecutionEnvironment job =
            StreamExecutionEnvironment.createLocalEnvironment(TASKS, configuration);
        job.fromSource(
                source(arguments[0], arguments[2]), WatermarkStrategy.noWatermarks(), "source")
            .sinkTo(sink(arguments[0], arguments[3]));
        job.execute();
    }

    private static Configuration configuration(Path folder) {
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "500 ms");
        configuration.setString("execution.checkpointing.dir", folder.toUri().toString());
        configuration.setString(
            "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        // While the broker is away the job fails, and starts again, in this same process.
        configuration.setString("restart-strategy.type", "fixed-delay");
        configuration.setString("restart-strategy.fixed-delay.attempts", "1000");
        configuration.setString("restart-strategy.fixed-delay.delay", "500 ms");
        // As little memory as this takes.
        configuration.setString("taskmanager.memory.network.min", "8 mb");
        configuration.setString("taskmanager.memory.network.max", "8 mb");
        configuration.setString("taskmanager.memory.managed.size", "16 mb");
        return configuration;
    }

    /** That with the highest number; one is complete if it has this file. */
    private static Optional<Path> lastCheckpoint(Path folder) throws IOException {
        Files.createDirectories(folder);
        try (Stream<Path> paths = Files.walk(folder)) {
            return paths
                .filter(path -> path.endsWith("_metadata"))
                .map(Path::getParent)
                .max(Comparator.comparingLong(FlinkCopier::number));
        }
    }

    private static long number(Path checkpoint) {
        return Long.parseLong(checkpoint.getFileName().toString().replace("chk-", ""));
    }

    private static KafkaSource<String> source(String bootstrap, String topic) {
        return KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(topic)
            .setGroupId("flink")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .setProperty("isolation.level", "read_committed")
            .build();
    }

    private static KafkaSink<String> sink(String bootstrap, String topic) {
        return KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("flink")
            // Flink's default is more than transaction.max.timeout.ms of a broker.
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(topic)
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
    }
}
