package strandline.spark

import java.lang.ref.SoftReference
import java.util.ArrayDeque
import java.util.concurrent.{Callable, ExecutionException, ExecutorService, Future}

/** One range of a log, read in windows of whole, checked batches, one window ahead of its caller.
  *
  * {{{
  *   range   [............|............|....]    as the statistics cut it
  *   window  [..torn|............]               one GET, behind what the one before left torn
  *   block   [whole batches][torn]               checked before the first row is given out
  * }}}
  *
  * The counterpart of `segments.LogReader`, with its checks: every CRC, offsets that grow and stay
  * inside the range, at the end the record count, and of a whole object its checksum. A block that
  * fails is read once more, then the object is declared damaged.
  *
  * Two arrays are used in turn: while the rows of one are read, the other is filled. So a task
  * holds two windows, and what one batch needs beyond that.
  */
final class LogWindows(
    reader: ObjectReader,
    slice: Slice,
    part: ChunkRange,
    settings: Settings,
    ahead: ExecutorService,
    buffers: WindowBuffers
) {
  private val whole = part.end - part.start == slice.log.sizeBytes
  // Of all batches so far, joined from their own checksums: no byte is summed twice.
  private var crc = 0
  private var recordCount = 0L
  private var nextOffset = part.baseOffset
  // Where the block begins in the log, and in its array.
  private var position = part.start
  private var bytes: Array[Byte] = null
  private var blockStart = 0
  private var windowEnd = 0
  private var fetched = part.start
  private var waiting: Future[Array[Byte]] = null
  private var waitingLength = 0

  /** The headers of the block's batches, in `bytes`. */
  val found = new BatchTable

  def payload: Array[Byte] = bytes

  /** The next block into `found`; false at the end of the range, once all of it proved right. */
  def next(): Boolean = {
    while (fetched < part.end || waiting != null) {
      load()
      if (found.count > 0) return true
    }
    finish()
    false
  }

  private def load(): Unit = {
    val tornStart = if (found.count > 0) found.ends(found.count - 1) else blockStart
    val torn = windowEnd - tornStart
    if (waiting == null) ask()
    val length = waitingLength
    val filled = await()
    val before = bytes
    bytes =
      if (torn <= buffers.headroom) filled
      else {
        val larger = new Array[Byte](Math.addExact(torn, length))
        System.arraycopy(filled, buffers.headroom, larger, torn, length)
        larger
      }
    val start = if (bytes eq filled) buffers.headroom else torn
    if (torn > 0) System.arraycopy(before, tornStart, bytes, start - torn, torn)
    blockStart = start - torn
    windowEnd = start + length
    // Only now may the array of the block before be filled again.
    if (fetched < part.end) ask()
    check()
  }

  private def ask(): Unit = {
    val start = fetched
    // Cut where the Python reader cuts: requests are counted from the range's beginning.
    val end = math.min(part.end, start + settings.windowBytes)
    val target = buffers.other()
    waitingLength = (end - start).toInt
    fetched = end
    waiting = ahead.submit(new Callable[Array[Byte]] {
      override def call(): Array[Byte] = {
        reader.read(slice.log, start, end, target, buffers.headroom)
        target
      }
    })
  }

  /** Whether a thread may still write into one of the arrays. */
  def isFetching: Boolean = waiting != null

  private def await(): Array[Byte] = {
    // A task that is interrupted here leaves a fetch under way.
    val filled =
      try waiting.get()
      catch {
        case error: ExecutionException =>
          waiting = null
          throw error.getCause
      }
    waiting = null
    filled
  }

  /** Waits for the window ahead; whether it came is `await`'s. */
  private def settle(): Unit =
    try waiting.get()
    catch { case _: ExecutionException => () }

  /** Scans and checks the block; reads its bytes once more if they are wrong. */
  private def check(): Unit = {
    try verify()
    catch {
      case _: CorruptRecords =>
        // Bytes are sometimes damaged on their way, and nothing below us would notice.
        if (waiting != null) settle() // one range at a time
        reader.read(slice.log, position, position + windowEnd - blockStart, bytes, blockStart)
        try verify()
        catch { case error: CorruptRecords => throw corrupt(position, error.getMessage) }
    }
    if (found.count > 0) {
      val end = found.ends(found.count - 1)
      var at = 0
      while (at < found.count) {
        if (whole) crc = found.joinedCrc(crc, bytes, at)
        recordCount += found.recordCounts(at)
        at += 1
      }
      nextOffset = found.lastOffset(found.count - 1) + 1
      position += end - blockStart
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
      if (base < next || last >= part.endOffset)
        throw new CorruptRecords(
          s"a batch with the offsets $base to $last lies where $next to ${part.endOffset - 1}" +
            " belong")
      next = last + 1
      at += 1
    }
    // A batch that would end behind its range is refused now, not when all of it was loaded.
    val torn = if (found.count > 0) found.ends(found.count - 1) else blockStart
    if (windowEnd - torn >= BatchTable.OverheadBytes) {
      val length = Bytes.int(bytes, torn + 8)
      val left = part.end - position - (torn - blockStart)
      if (length.toLong + BatchTable.OverheadBytes > left)
        throw new CorruptRecords(s"a batch of $length bytes reaches beyond its chunk")
    }
  }

  private def finish(): Unit = {
    if (position != part.end)
      throw corrupt(position, s"${part.end - position} bytes behind the last batch")
    if (recordCount != part.recordCount)
      throw corrupt(
        part.start,
        s"holds $recordCount records up to byte ${part.end}, ${part.recordCount} were archived")
    // Offsets lie outside the batches' CRCs. A whole object has a checksum of its own.
    if (whole && crc != slice.crc32c)
      throw corrupt(0, "checksum of the whole object differs from the manifest's")
  }

  private def corrupt(from: Long, detail: String) = new ObjectCorrupt(
    s"${settings.url}/${slice.log.key}", "read",
    s"from byte $from: $detail; ${settings.texts("remedy")}")
}

/** The two arrays of a task, with room in front for a batch that was torn. */
final class WindowBuffers(windowBytes: Int) {
  val headroom: Int = 1 << 20
  private val arrays = new Array[Array[Byte]](2)
  private var turn = 0

  def other(): Array[Byte] = {
    turn ^= 1
    if (arrays(turn) == null) arrays(turn) = IdleWindows.take(headroom + windowBytes)
    arrays(turn)
  }

  /** For the next task. Nobody may read or write the arrays any more. */
  def giveBack(): Unit =
    for (at <- arrays.indices if arrays(at) != null) {
      IdleWindows.give(arrays(at))
      arrays(at) = null
    }
}

/** Arrays between two tasks of this JVM.
  *
  * Of so large an array the JVM has to clear each page, and collects its garbage earlier: 18 MB
  * for each task of 64 MiB. At most IdleMax are kept, and none when memory is short.
  */
object IdleWindows {
  private val IdleMax = 2 * Runtime.getRuntime.availableProcessors
  private val idle = new ArrayDeque[SoftReference[Array[Byte]]]

  /** An array of this length. What is in it is anybody's. */
  def take(length: Int): Array[Byte] = {
    var found: Array[Byte] = null
    idle.synchronized {
      while (found == null && !idle.isEmpty) {
        val array = idle.pop().get
        if (array != null && array.length == length) found = array
      }
    }
    if (found != null) found else new Array[Byte](length)
  }

  def give(array: Array[Byte]): Unit =
    idle.synchronized {
      if (idle.size < IdleMax) idle.push(new SoftReference(array))
    }
}

/** The headers of a block's batches; see `storage/records/batch.py` for their layout. */
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
          else s"batch at position ${at - start} has a magic that is not $Magic")
      }
      if (length < LengthMin)
        throw new CorruptRecords(s"batch at position ${at - start} has a length below $LengthMin")
      if (length > end - at - OverheadBytes) return
      val base = Bytes.long(bytes, at)
      val lastDelta = Bytes.int(bytes, at + 23)
      val records = Bytes.int(bytes, at + 57)
      if (base < 0 || base >= OffsetEnd || lastDelta < 0 || records < 0 ||
        records > lastDelta.toLong + 1)
        throw new CorruptRecords(
          s"batch at position ${at - start} has impossible offsets or record count")
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
