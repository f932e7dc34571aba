package strandline.spark

/** The ranges of a task's logs, as blocks of whole, checked batches.
  *
  * {{{
  *   range   [............|............|....]    as the statistics cut it
  *   window  [..torn|............]               8 MiB, behind what the one before left torn
  *   block   [whole batches][torn]               checked before the first row is given out
  * }}}
  *
  * The counterpart of `segments.LogReader`, with its checks: every CRC, offsets that grow and stay
  * inside the range, the checksum of each chunk, or of a whole object, and of a range the record
  * count. A block that fails is read once more, then the object is declared damaged. What ends in a
  * block proves right before its rows are shown.
  *
  * While the rows of one window are read, the next is fetched, be it of another object: see
  * `WindowFeed`.
  */
final class LogWindows(reader: ObjectReader, feed: WindowFeed, settings: Settings) {
  private var part: Part = null
  private var range: ChunkRange = null
  // Of the batches of the chunk, or of the object, so far: joined from their own checksums, so that
  // no byte is summed twice.
  private var crc = 0
  private var sums: Vector[ChunkChecksum] = Vector.empty
  private var sumsAt = 0
  private var recordCount = 0L
  private var nextOffset = 0L
  // Where the block begins in the log, and in its array.
  private var position = 0L
  private var bytes: Array[Byte] = null
  private var blockStart = 0
  private var tornStart = 0
  private var windowEnd = 0
  private var fetched = 0L

  /** The headers of the block's batches, in `payload`. */
  val found = new BatchTable

  def payload: Array[Byte] = bytes

  /** What the block is of. */
  def slice: Slice = part.slice
  def aborted: AbortedTransactions = part.aborted

  /** The next block into `found`; false behind the last range, once all of each proved right. */
  def next(): Boolean = {
    var isInside = true
    found.count = 0
    while (isInside && found.count == 0) {
      val window = feed.take()
      if (window == null) isInside = false
      else {
        if (window.part ne part) begin(window.part)
        load(window)
      }
    }
    isInside
  }

  private def begin(one: Part): Unit = {
    part = one
    range = one.range
    crc = 0
    sums = range.checksums
    // Offsets lie outside the batches' CRCs. A whole object has a checksum of its own.
    if (sums.isEmpty && range.end - range.start == slice.log.sizeBytes)
      sums = Vector(ChunkChecksum(range.end, slice.crc32c))
    sumsAt = 0
    recordCount = 0
    nextOffset = one.range.baseOffset
    position = one.range.start
    tornStart = 0
    windowEnd = 0
  }

  private def load(window: Window): Unit = {
    val torn = windowEnd - tornStart
    val length = (window.end - window.start).toInt
    val before = bytes
    bytes =
      if (torn <= WindowBuffers.Headroom) window.bytes
      else {
        val larger = new Array[Byte](Math.addExact(torn, length))
        System.arraycopy(window.bytes, WindowBuffers.Headroom, larger, torn, length)
        larger
      }
    val start = if (bytes eq window.bytes) WindowBuffers.Headroom else torn
    if (torn > 0) System.arraycopy(before, tornStart, bytes, start - torn, torn)
    blockStart = start - torn
    windowEnd = start + length
    fetched = window.end
    // Only now may the array of the block before be filled again.
    feed.ask()
    check()
    if (fetched == range.end) finish()
  }

  /** Scans and checks the block; reads its bytes once more if they are wrong. */
  private def check(): Unit = {
    try verify()
    catch {
      case _: CorruptRecords =>
        // Bytes are sometimes damaged on their way, and nothing below us would notice.
        feed.settle() // one range at a time
        reader.read(slice.log, position, position + windowEnd - blockStart, bytes, blockStart)
        try verify()
        catch { case error: CorruptRecords => throw corrupt(position, error.getMessage) }
    }
    tornStart = blockStart
    if (found.count > 0) {
      val end = found.ends(found.count - 1)
      var at = 0
      while (at < found.count) {
        if (sumsAt < sums.length) addToSum(at)
        recordCount += found.recordCounts(at)
        at += 1
      }
      nextOffset = found.lastOffset(found.count - 1) + 1
      position += end - blockStart
      tornStart = end
    }
  }

  private def verify(): Unit = {
    found.scan(bytes, blockStart, windowEnd)
    var next = nextOffset
    var at = 0
    while (at < found.count) {
      found.checkCrc(bytes, at)
      val base = found.baseOffsets(at)
      val last = found.lastOffset(at)
      if (base < next || last >= range.endOffset)
        throw new CorruptRecords(
          s"a batch with the offsets $base to $last lies where $next to ${range.endOffset - 1}" +
            " belong")
      next = last + 1
      at += 1
    }
    // A batch that would end behind its range is refused now, not when all of it was loaded.
    val torn = if (found.count > 0) found.ends(found.count - 1) else blockStart
    if (windowEnd - torn >= BatchTable.OverheadBytes) {
      val length = Bytes.int(bytes, torn + 8)
      val left = range.end - position - (torn - blockStart)
      if (length.toLong + BatchTable.OverheadBytes > left)
        throw new CorruptRecords(s"a batch of $length bytes reaches beyond its chunk")
    }
  }

  /** Every batch may be right in itself, and another segment's of the same shape. */
  private def addToSum(at: Int): Unit = {
    crc = found.joinedCrc(crc, bytes, at)
    val wanted = sums(sumsAt)
    val behind = position + found.ends(at) - blockStart
    if (behind >= wanted.end) {
      if (behind != wanted.end || crc != wanted.crc32c)
        throw if (range.checksums.isEmpty)
          corrupt(0, "checksum of the whole object differs from the manifest's")
        else
          corrupt(
            if (sumsAt == 0) range.start else sums(sumsAt - 1).end,
            "checksum of the chunk differs from the statistics'")
      crc = 0
      sumsAt += 1
    }
  }

  private def finish(): Unit = {
    if (position != range.end)
      throw corrupt(position, s"${range.end - position} bytes behind the last batch")
    if (recordCount != range.recordCount)
      throw corrupt(
        range.start,
        s"holds $recordCount records up to byte ${range.end}, ${range.recordCount} were archived")
  }

  private def corrupt(from: Long, detail: String) = new ObjectCorrupt(
    s"${settings.url}/${slice.log.key}", "read",
    s"from byte $from: $detail; ${settings.texts("remedy")}; ${slice.log.offsets}")
}

/** The headers of a block's batches; see `storage/records/batch/batch.py` for their layout. */
final class BatchTable {
  import BatchTable._

  var count = 0
  var starts = new Array[Int](64)
  var ends = new Array[Int](64)
  var baseOffsets = new Array[Long](64)
  var lastDeltas = new Array[Int](64)
  var recordCounts = new Array[Int](64)

  def lastOffset(at: Int): Long = baseOffsets(at) + lastDeltas(at)

  /** The whole batches of bytes(start until end); a last partial one is left out silently. */
  def scan(bytes: Array[Byte], start: Int, end: Int): Unit = {
    count = 0
    var at = start
    while (end - at >= HeaderBytes) {
      val length = Bytes.int(bytes, at + 8)
      if (bytes(at + 16) != Magic) {
        val magic = bytes(at + 16)
        throw new CorruptRecords(
          if (magic == 0 || magic == 1)
            s"a message of the old format v$magic, which only the Python reader decodes: read it" +
              " with the option engine=python"
          else s"batch at position ${at - start} has magic $magic, only $Magic is served")
      }
      if (length < LengthMin)
        throw new CorruptRecords(
          s"batch at position ${at - start} has a length of $length, below $LengthMin")
      if (length > end - at - OverheadBytes) return
      val base = Bytes.long(bytes, at)
      val lastDelta = Bytes.int(bytes, at + 23)
      val records = Bytes.int(bytes, at + 57)
      if (base < 0 || base >= OffsetEnd || lastDelta < 0 || records < 0 ||
        records > lastDelta.toLong + 1)
        throw new CorruptRecords(
          s"batch at position ${at - start} has $records records at offsets $base to " +
            s"${base + lastDelta}")
      if (count == starts.length) grow()
      starts(count) = at
      ends(count) = at + OverheadBytes + length
      baseOffsets(count) = base
      lastDeltas(count) = lastDelta
      recordCounts(count) = records
      at = ends(count)
      count += 1
    }
  }

  def checkCrc(bytes: Array[Byte], at: Int): Unit = {
    val start = starts(at) + CrcStart
    val computed = Checksum.of(bytes, start, ends(at) - start)
    val said = Bytes.int(bytes, starts(at) + 17)
    if (computed != said)
      throw new CorruptRecords(
        f"CRC of batch at offset ${baseOffsets(at)} is 0x$computed%08x, its header says" +
          f" 0x$said%08x")
  }

  /** The checksum of everything before this batch, and of it; its own must have been checked. */
  def joinedCrc(before: Int, bytes: Array[Byte], at: Int): Int = {
    val start = starts(at)
    val head = Checksum.joined(before, Checksum.of(bytes, start, CrcStart), CrcStart)
    Checksum.joined(head, Bytes.int(bytes, start + 17), ends(at) - start - CrcStart)
  }

  def attributes(bytes: Array[Byte], at: Int): Int = Bytes.short(bytes, starts(at) + 21)
  def producerId(bytes: Array[Byte], at: Int): Long = Bytes.long(bytes, starts(at) + 43)

  /** The batch with its records in `payload(start until end)`, which may be decompressed ones. */
  def batch(bytes: Array[Byte], at: Int, payload: Array[Byte], start: Int, end: Int): RecordBatch =
    new RecordBatch(
      payload, start, end,
      baseOffset = baseOffsets(at),
      baseMs = Bytes.long(bytes, starts(at) + 27),
      maxMs = Bytes.long(bytes, starts(at) + 35),
      isLogAppendTime = (attributes(bytes, at) & TimestampTypeBit) != 0,
      recordCount = recordCounts(at),
      lastOffsetDelta = lastDeltas(at))

  private def grow(): Unit = {
    val more = 2 * count
    starts = java.util.Arrays.copyOf(starts, more)
    ends = java.util.Arrays.copyOf(ends, more)
    baseOffsets = java.util.Arrays.copyOf(baseOffsets, more)
    lastDeltas = java.util.Arrays.copyOf(lastDeltas, more)
    recordCounts = java.util.Arrays.copyOf(recordCounts, more)
  }
}

object BatchTable {
  final val HeaderBytes = 61
  final val OverheadBytes = 12
  final val LengthMin = HeaderBytes - OverheadBytes
  final val CrcStart = 21
  final val Magic = 2
  // Offsets from here on could wrap when a 32-bit delta is added.
  final val OffsetEnd = Long.MaxValue - 0xffffffffL
  final val CodecMask = 0x07
  final val TimestampTypeBit = 0x08
  final val TransactionalBit = 0x10
  final val ControlBit = 0x20
}
