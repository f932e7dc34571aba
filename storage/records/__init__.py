"""Record batches as Kafka writes them: headers, records, codecs."""
