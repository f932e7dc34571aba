"""`strandline topic`, `group`, `produce`, `consume`: command-line tools for any Kafka cluster.

    arguments           adds the commands
      topics, groups, produce, consume, status        one file per command, with its arguments
        cluster         requests to a cluster, as values               resets, timestamps: pure
          connection    addresses, settings, and remedies for errors
            printing, failures

The tools speak the Kafka protocol only, through confluent-kafka, which is imported when a command
runs: the broker and `--help` do not load it.
"""
