import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * Sends the lines of a file that grows, some in each transaction, with the position behind the last.
 *
 * Kafka's FileStreamSource keeps lines back until the file grows again if they do not all fit into
 * one batch, and sends everything in one transaction if they do.
 */
public final class LinesConnector extends SourceConnector {
    private Map<String, String> configuration;

    @Override
    public void start(Map<String, String> configuration) {
        this.configuration = configuration;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return LinesTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int tasksMax) {
        return Collections.singletonList(configuration);
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> configuration) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "whose lines it sends")
            .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where it sends them");
    }

    @Override
    public void stop() {
    }

    @Override
    public String version() {
        return "1";
    }

    /** Reads the file; its offsets are positions in it. */
    public static final class LinesTask extends SourceTask {
        private static final int LINES_PER_TRANSACTION = 2;
        // So that a round's lines take some seconds, in which a kill meets open transactions.
        private static final long PAUSE_MS = 50;

        private String path;
        private String topic;
        private long position;

        @Override
        public void start(Map<String, String> configuration) {
            path = configuration.get("file");
            topic = configuration.get("topic");
            Map<String, Object> offset = context.offsetStorageReader().offset(partition());
            position = offset == null ? 0 : (Long) offset.get("position");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS);
            List<SourceRecord> records = new ArrayList<>();
            try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
                file.seek(position);
                while (records.size() < LINES_PER_TRANSACTION && file.getFilePointer() < file.length()) {
                    String line = file.readLine();
                    position = file.getFilePointer();
                    records.add(new SourceRecord(
                        partition(),
                        Collections.singletonMap("position", position),
                        topic,
                        Schema.STRING_SCHEMA,
                        line));
                }
            } catch (IOException error) {
                throw new IllegalStateException(path, error);
            }
            return records;
        }

        private Map<String, String> partition() {
            return Collections.singletonMap("file", path);
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
