package strandline.spark

/** Rows outside are left out: those from `endOffset` on, and those later than `lastMs`. */
final case class RowLimits(startOffset: Long, endOffset: Long, startMs: Long, lastMs: Long)

/** The records of one batch: `payload(start until end)`, and what its header says of them. */
final class RecordBatch(
    val payload: Array[Byte],
    val start: Int,
    val end: Int,
    val baseOffset: Long,
    val baseMs: Long,
    val maxMs: Long,
    val isLogAppendTime: Boolean,
    val recordCount: Int,
    val lastOffsetDelta: Int
)

/** Rows of records, up to RowsMax, all of one payload; only places of keys and values are kept.
  *
  * {{{
  *   record   length | attributes | timestamp delta | offset delta
  *            | key length | key | value length | value | header count | headers        varints
  * }}}
  *
  * It accepts exactly what `kernels.decode_records` of the Python reader accepts: nothing is read
  * at a position that was not compared with its end before, a length is compared with what is left
  * (the sum might wrap), and sums of deltas are checked for wrapping.
  */
final class Rows(limits: RowLimits, needsTimes: Boolean, needsHeaders: Boolean) {
  import Rows._

  val offsets = new Array[Long](RowsMax)
  val micros = new Array[Long](RowsMax)
  val timestampTypes = new Array[Int](RowsMax)
  val keys = new Places(RowsMax)
  val values = new Places(RowsMax)
  val headers = new Places(if (needsHeaders) RowsMax else 0)
  val headerKeys = new Places(if (needsHeaders) RowsMax else 1)
  val headerValues = new Places(if (needsHeaders) RowsMax else 1)
  var payload: Array[Byte] = null
  var count = 0
  var headerCount = 0

  private var batch: RecordBatch = null
  private var record = 0
  private var position = 0
  private var previousDelta = -1L
  // Behind the varint that was read last; -1 if it was cut, or has more than 64 bits.
  private var behind = 0

  def isInside: Boolean = batch != null

  def clear(): Unit = {
    count = 0
    headerCount = 0
    payload = null
  }

  /** Begins a batch; the one before must have ended. */
  def begin(one: RecordBatch): Unit = {
    if (one.recordCount > (one.end - one.start) / RecordBytesMin)
      throw new CorruptRecords(
        s"batch at offset ${one.baseOffset} says ${one.recordCount} records" +
          s" in ${one.end - one.start} bytes")
    batch = one
    record = 0
    position = one.start
    previousDelta = -1
  }

  /** Decodes on until the batch ends or the rows are full. */
  def decode(): Unit = {
    val one = batch
    val bytes = one.payload
    payload = bytes
    val payloadEnd = one.end
    val recordCount = one.recordCount
    val lastDelta = one.lastOffsetDelta.toLong
    val baseOffset = one.baseOffset
    val baseMs = one.baseMs
    val timestampType = if (one.isLogAppendTime) 1 else 0
    val keyStarts = keys.starts
    val keyLengths = keys.lengths
    val valueStarts = values.starts
    val valueLengths = values.lengths
    var row = count
    var at = position
    while (record < recordCount && row < RowsMax) {
      val length = varint(bytes, at, payloadEnd)
      at = advanced()
      if (length < 1 || length > payloadEnd - at) wrong("has a length that exceeds its batch")
      val end = at + length.toInt
      val timestampDelta = varint(bytes, at + 1, end)
      at = advanced()
      val offsetDelta = varint(bytes, at, end)
      at = advanced()
      val keyLength = nullable(bytes, at, end)
      val keyAt = behind
      at = if (keyLength > 0) keyAt + keyLength else keyAt
      val valueLength = nullable(bytes, at, end)
      val valueAt = behind
      at = if (valueLength > 0) valueAt + valueLength else valueAt
      val headersHere = varint(bytes, at, end)
      at = advanced()
      if (headersHere < 0 || headersHere > end - at) wrong("has an impossible header count")
      val headersAt = at
      if (headersHere > 0) at = skipHeaders(bytes, at, end, headersHere.toInt)
      if (at != end) wrong("has spare bytes")
      // The offset cannot wrap: scanning refuses base offsets for which it could.
      if (offsetDelta <= previousDelta || offsetDelta > lastDelta)
        wrong("has an offset delta outside its batch, or not above the one before")
      val ms = baseMs + timestampDelta
      if (((baseMs ^ ms) & (timestampDelta ^ ms)) < 0) wrong("has a timestamp of more than 64 bits")
      val offset = baseOffset + offsetDelta
      val time = if (timestampType != 0) one.maxMs else ms
      if (offset >= limits.startOffset && offset < limits.endOffset &&
        time >= limits.startMs && time <= limits.lastMs) {
        offsets(row) = offset
        if (needsTimes) micros(row) = microseconds(time, offset)
        timestampTypes(row) = timestampType
        keyStarts(row) = keyAt
        keyLengths(row) = keyLength
        valueStarts(row) = valueAt
        valueLengths(row) = valueLength
        if (needsHeaders) keepHeaders(row, bytes, headersAt, end, headersHere.toInt)
        row += 1
      }
      previousDelta = offsetDelta
      record += 1
    }
    count = row
    position = at
    if (record == recordCount) {
      if (at != payloadEnd)
        throw new CorruptRecords(
          s"batch at offset $baseOffset has bytes behind its last record")
      batch = null
    }
  }

  /** A zigzag varint; `behind` is where it ends. */
  private def varint(bytes: Array[Byte], from: Int, end: Int): Long =
    if (from < end && bytes(from) >= 0) {
      behind = from + 1
      val low = bytes(from).toLong
      (low >>> 1) ^ -(low & 1)
    } else if (from + 1 < end && bytes(from + 1) >= 0) {
      behind = from + 2
      val low = (bytes(from) & 0x7f) | (bytes(from + 1).toLong << 7)
      (low >>> 1) ^ -(low & 1)
    } else longVarint(bytes, from, end)

  private def longVarint(bytes: Array[Byte], from: Int, end: Int): Long = {
    var result = 0L
    var shift = 0
    var at = from
    while (at < end) {
      val byte = bytes(at)
      at += 1
      // The tenth byte of 64 bits holds one of them.
      if (shift == 63 && (byte & 0xff) > 1) {
        behind = -1
        return 0
      }
      result |= (byte & 0x7fL) << shift
      if (byte >= 0) {
        behind = at
        return (result >>> 1) ^ -(result & 1)
      }
      shift += 7
    }
    behind = -1
    0
  }

  private def advanced(): Int = {
    if (behind < 0) wrong("ends inside a varint, or has one of more than 64 bits")
    behind
  }

  /** A length, -1 for null, that fits into what is left; `behind` is where its bytes begin. */
  private def nullable(bytes: Array[Byte], from: Int, end: Int): Int = {
    val length = varint(bytes, from, end)
    val at = advanced()
    if (length < -1 || length > end - at) wrong("has a key, value or header longer than itself")
    length.toInt
  }

  private def skipHeaders(bytes: Array[Byte], from: Int, end: Int, headersHere: Int): Int = {
    var at = from
    var left = headersHere
    while (left > 0) {
      val keyLength = nullable(bytes, at, end)
      if (keyLength < 0) wrong("has a key, value or header longer than itself")
      val valueLength = nullable(bytes, behind + keyLength, end)
      at = behind + math.max(valueLength, 0)
      left -= 1
    }
    at
  }

  /** The places of headers that `skipHeaders` has walked already. */
  private def keepHeaders(
      row: Int, bytes: Array[Byte], from: Int, end: Int, headersHere: Int): Unit = {
    headers.put(row, headerCount, headersHere)
    var at = from
    var left = headersHere
    while (left > 0) {
      val keyLength = nullable(bytes, at, end)
      headerKeys.put(headerCount, behind, keyLength)
      val valueLength = nullable(bytes, behind + keyLength, end)
      headerValues.put(headerCount, behind, valueLength)
      at = behind + math.max(valueLength, 0)
      headerCount += 1
      left -= 1
    }
  }

  private def microseconds(ms: Long, offset: Long): Long = {
    if (ms > TimestampMsMax || ms < -TimestampMsMax)
      throw new CorruptRecords(
        s"the timestamp $ms ms of the record at offset $offset lies beyond what Spark can hold;" +
          " leave that offset out, or choose a schema without the column timestamp")
    ms * 1000
  }

  private def wrong(reason: String): Nothing =
    throw new CorruptRecords(s"record $record of the batch at offset ${batch.baseOffset} $reason")
}

object Rows {
  // Enough rows to make a batch cheap, few enough that its table stays in the cache.
  final val RowsMax = 8192
  // Length, attributes, two deltas, two null lengths and a header count: one byte each.
  final val RecordBytesMin = 7
  // Spark's timestamps are microseconds in 64 bits; Kafka's are milliseconds in as many.
  final val TimestampMsMax = Long.MaxValue / 1000
}
