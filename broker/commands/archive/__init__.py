"""What `strandline archive` does with the objects of a bucket, without a broker."""
