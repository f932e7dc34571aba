package org.apache.kafka.common.utils;

/** Kafka 4.4 moved the class; LocalTieredStorage of 4.3.1 asks for it here (see pom.xml). */
public class LogContext extends org.apache.kafka.common.utils.internals.LogContext {
    public LogContext(String prefix) {
        super(prefix);
    }
}
