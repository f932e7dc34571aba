import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Copies a topic with Spring for Apache Kafka, each record and its offset in one transaction.
 *
 * Arguments: bootstrap servers, prefix of the transactional ids, group, source, target.
 */
public final class SpringCopier {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String target = arguments[4];
        DefaultKafkaProducerFactory<String, String> producers = producers(bootstrap, arguments[1]);
        KafkaTemplate<String, String> template = new KafkaTemplate<>(producers);
        ContainerProperties properties = new ContainerProperties(arguments[3]);
        properties.setGroupId(arguments[2]);
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        properties.setMessageListener((MessageListener<String, String>) record ->
            template.send(target, record.value()));
        ConcurrentMessageListenerContainer<String, String> container =
            new ConcurrentMessageListenerContainer<>(consumers(bootstrap), properties);
        // By default a record that was rolled back ten times is skipped.
        container.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(
            new FixedBackOff(500, FixedBackOff.UNLIMITED_ATTEMPTS)));
        container.start();
    }

    private static DefaultKafkaProducerFactory<String, String> producers(
            String bootstrap, String prefix) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", bootstrap);
        DefaultKafkaProducerFactory<String, String> producers = new DefaultKafkaProducerFactory<>(
            properties, new StringSerializer(), new StringSerializer());
        producers.setTransactionIdPrefix(prefix);
        return producers;
    }

    private static DefaultKafkaConsumerFactory<String, String> consumers(String bootstrap) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        properties.put("session.timeout.ms", 6000);
        return new DefaultKafkaConsumerFactory<>(
            properties, new StringDeserializer(), new StringDeserializer());
    }
}
