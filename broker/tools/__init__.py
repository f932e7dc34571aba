"""`strandline topic`, `group`, `produce` and `consume`: a cluster by hand, for any Kafka cluster.

    arguments           what can be typed, and the examples of `--help`
      topic_commands, group_commands, produce_command, consume_command     one file per command
        cluster         the questions to a cluster, as values          resets, moments: pure
          connection    how to reach it, and what its refusals mean
            printing, failures

Only the Kafka protocol is spoken here, through confluent-kafka, an optional extra that is imported
when a command runs: the broker does without it, and so does `--help`.
"""
