package strandline.spark

import java.nio.charset.StandardCharsets.US_ASCII
import java.util.Arrays

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import scala.collection.immutable.TreeMap
import scala.jdk.CollectionConverters._

/** An aborted transaction: what its producer wrote in [first, last] is not read. */
final case class Aborted(producerId: Long, first: Long, last: Long)

/** The aborted transactions of a segment, of which there may be very many. */
final class AbortedTransactions(all: Vector[Aborted]) {
  // A producer has one transaction at a time: the first that ends behind a batch may contain it.
  private val firstsByLast: Map[Long, TreeMap[Long, Long]] =
    all.groupBy(_.producerId).map { case (producerId, of) =>
      producerId -> TreeMap.from(of.map(one => one.last -> one.first))
    }

  def isEmpty: Boolean = firstsByLast.isEmpty

  /** Whether a transactional batch of this producer, which begins at `offset`, was aborted. */
  def contains(producerId: Long, offset: Long): Boolean =
    firstsByLast.get(producerId).exists(_.minAfter(offset).exists(_._2 <= offset))
}

object AbortedTransactions {
  val None = new AbortedTransactions(Vector.empty)
}

/** The sections of a segment's `.meta` that a task may need; see `storage/remote/segment/meta.py`.
  *
  * {{{
  *   sections ... | directory (JSON) | directory length u32 | crc32c u32 | version u16 | magic 8
  * }}}
  *
  * Everything is checked as the Python reader checks it; what is odd is an ObjectCorrupt.
  */
final class SegmentMeta(reader: ObjectReader, slice: Slice, settings: Settings) {
  import SegmentMeta._

  private val size = slice.meta.sizeBytes
  private var tail = new Array[Byte](0)
  private var whole = 0
  private var directory: Option[Map[String, (Long, Int, Long)]] = None

  /** The chunks of the whole log with their time bounds. */
  def chunks(): Vector[Chunk] = {
    val found = parsed(section("statistics").getOrElse(throw corrupt("has no statistics")))
    val name = found.path("format").asText
    if (name != StatisticsFormat) throw corrupt(s"holds a $name, not $StatisticsFormat")
    if (found.path("version").asInt != 1)
      throw corrupt(s"statistics have version ${found.path("version")}, this release reads 1")
    val rows = found.path("chunks").elements.asScala.toVector
    val starts = rows.map(_.get(0).longValue) :+ slice.log.sizeBytes
    val offsets = rows.map(_.get(1).longValue) :+ slice.endOffset
    val checksums = found.path("chunk_checksums")
    if (!checksums.isMissingNode && checksums.size != rows.size)
      throw corrupt(s"has ${rows.size} chunks with ${checksums.size} checksums")
    val made = rows.zipWithIndex.map { case (row, at) =>
      val range = ChunkRange(
        starts(at), starts(at + 1), offsets(at), offsets(at + 1), row.get(2).longValue,
        ChunkChecksum.of(starts(at + 1), checksums.get(at)))
      Chunk(range, row.get(3).longValue, row.get(4).longValue)
    }
    val isSound = made.nonEmpty && starts.head == 0 && offsets.head >= slice.baseOffset &&
      made.forall(one => one.range.start < one.range.end &&
        one.range.baseOffset < one.range.endOffset) &&
      found.path("record_count").longValue == slice.recordCount &&
      made.map(_.range.recordCount).sum == slice.recordCount
    if (!isSound) throw corrupt("has statistics that do not fit the manifest")
    made
  }

  def abortedTransactions(): AbortedTransactions = section("txn_index") match {
    case None => AbortedTransactions.None
    case Some(bytes) =>
      if (bytes.length % TxnEntryBytes != 0)
        throw odd(s"${bytes.length} bytes are no transaction index")
      new AbortedTransactions((0 until bytes.length by TxnEntryBytes).map { at =>
        val version = Bytes.short(bytes, at)
        if (version != 0) throw odd(s"transaction index entry of version $version")
        Aborted(
          Bytes.long(bytes, at + 2), Bytes.long(bytes, at + 10), Bytes.long(bytes, at + 18))
      }.toVector)
  }

  private def section(name: String): Option[Array[Byte]] = {
    if (directory.isEmpty) directory = Some(loadDirectory())
    val found = directory.get.get(name).map { case (position, length, crc) =>
      val inTail = position - (size - tail.length)
      val bytes =
        if (inTail >= 0) Arrays.copyOfRange(tail, inTail.toInt, inTail.toInt + length)
        else range(position, position + length)
      if (Checksum.of(bytes, 0, length) != crc.toInt)
        throw odd(s"section $name has a wrong checksum")
      bytes
    }
    // That of another segment may be as long, and whole in itself.
    if (whole != slice.metaCrc32c)
      throw odd("checksum of the whole object differs from the manifest's")
    found
  }

  private def loadDirectory(): Map[String, (Long, Int, Long)] = {
    readTail(TailBytes)
    if (tail.length < FooterBytes) throw odd(s"$size bytes are no segment meta")
    var footer = tail.length - FooterBytes
    val length = Bytes.int(tail, footer)
    if (new String(tail, footer + 10, 8, US_ASCII) != Magic) throw odd("is no segment meta")
    val version = Bytes.short(tail, footer + 8)
    if (version != 1)
      throw odd(s"segment meta version $version, this release reads 1 to 1")
    if (length < 0 || FooterBytes + length.toLong + Magic.length > size)
      throw odd(s"directory of $length bytes exceeds the object")
    if (FooterBytes + length > tail.length) {
      readTail(FooterBytes + length)
      footer = tail.length - FooterBytes
    }
    val start = footer - length
    if (Checksum.of(tail, start, length) != Bytes.int(tail, footer + 4))
      throw odd("directory has a wrong checksum")
    val end = size - FooterBytes - length
    val rows = parsed(Arrays.copyOfRange(tail, start, footer)).elements.asScala.toVector
    whole = wholeChecksum(rows, start, end)
    rows.map { row =>
      val (position, bytes) = (row.get(1).longValue, row.get(2).longValue)
      if (position < Magic.length || bytes < 0 || bytes > end - position || bytes > Int.MaxValue)
        throw odd(s"section ${row.get(0).asText} lies outside the object")
      row.get(0).asText -> (position, bytes.toInt, row.get(3).longValue)
    }.toMap
  }

  /** From the checksums of the sections, which lie back to back: none of them has to be read. */
  private def wholeChecksum(rows: Seq[JsonNode], directory: Int, end: Long): Int =
    if (tail.length == size) Checksum.of(tail, 0, tail.length)
    else {
      val magic = Magic.getBytes(US_ASCII)
      val (position, before) =
        rows.foldLeft((magic.length.toLong, Checksum.of(magic, 0, magic.length))) {
          case ((at, checksum), row) =>
            val length = row.get(2).longValue
            if (row.get(1).longValue != at || length < 0 || length > end - at)
              throw odd(s"the directory leaves out bytes from $at on")
            (at + length, Checksum.joined(checksum, row.get(3).longValue.toInt, length.toInt))
        }
      if (position != end) throw odd(s"the directory leaves out bytes from $position on")
      val rest = tail.length - directory
      Checksum.joined(before, Checksum.of(tail, directory, rest), rest)
    }

  private def readTail(bytes: Int): Unit = tail = range(math.max(0L, size - bytes), size)

  private def range(start: Long, end: Long): Array[Byte] = {
    val bytes = new Array[Byte]((end - start).toInt)
    if (bytes.nonEmpty) reader.read(slice.meta, start, end, bytes, 0)
    bytes
  }

  private def parsed(bytes: Array[Byte]): JsonNode =
    try json.readTree(bytes)
    catch { case error: java.io.IOException => throw odd(s"is unreadable: ${error.getMessage}") }

  /** What Python's decoders say begins with their source. */
  private def odd(detail: String) = corrupt(s"${slice.meta.key}: $detail")

  private def corrupt(detail: String) = new ObjectCorrupt(
    s"${settings.url}/${slice.meta.key}", "read",
    s"$detail; ${settings.texts("metaRemedy")}; ${slice.meta.offsets}")
}

/** A chunk and the times of its records. */
final case class Chunk(range: ChunkRange, minMs: Long, maxMs: Long)

object SegmentMeta {
  private val json = new ObjectMapper
  private final val Magic = "slmeta\r\n"
  private final val FooterBytes = 18
  private final val TailBytes = 64 * 1024
  private final val TxnEntryBytes = 34
  private final val StatisticsFormat = "strandline-segment-statistics"

  /** What of a slice is read, neighbours joined: the counterpart of `pruning.prune`. */
  def wanted(slice: Slice, limits: RowLimits, meta: SegmentMeta): Vector[ChunkRange] = {
    def overlaps(part: ChunkRange) =
      part.endOffset > limits.startOffset && part.baseOffset < limits.endOffset
    if (slice.ranges.nonEmpty) joined(slice.ranges.filter(overlaps))
    else if (!slice.asksStatistics)
      Vector(ChunkRange(
        0, slice.log.sizeBytes, slice.baseOffset, slice.endOffset, slice.recordCount))
    else
      joined(meta.chunks().filter { one =>
        one.range.start >= slice.start && one.range.start < slice.end && overlaps(one.range) &&
        one.maxMs >= limits.startMs && one.minMs <= limits.lastMs
      }.map(_.range))
  }

  private def joined(parts: Seq[ChunkRange]): Vector[ChunkRange] =
    parts.foldLeft(Vector.empty[ChunkRange]) { (done, part) =>
      done.lastOption match {
        case Some(before) if before.end == part.start =>
          done.init :+ ChunkRange(
            before.start, part.end, before.baseOffset, part.endOffset,
            before.recordCount + part.recordCount, before.checksums ++ part.checksums)
        case _ => done :+ part
      }
    }
}
