package strandline.spark

import java.io.{ByteArrayInputStream, IOException}
import java.util.Base64
import java.util.zip.GZIPInputStream

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.apache.spark.sql.connector.read.InputPartition
import scala.jdk.CollectionConverters._

/** The plan that Python made: JSON, compressed, in an option of the source.
  *
  * `strandline/spark_lake/jvm/plan.py` writes it and describes it. Nothing is decided here: which
  * objects and chunks are read, and within which limits, is the planner's.
  */
final case class Plan(
    columns: Seq[String],
    description: String,
    bytes: Long,
    settings: Settings,
    splits: Seq[Split]
)

/** Settings of all splits: how objects are read, and the texts of errors. */
final case class Settings(
    url: String,
    readUncommitted: Boolean,
    windowBytes: Int,
    connectTimeoutMs: Int,
    readTimeoutMs: Int,
    attemptsMax: Int,
    signedUntilMs: Long,
    texts: Map[String, String]
)

/** The part of a plan that one task reads. */
final case class Split(
    topic: String,
    partition: Int,
    limits: RowLimits,
    slices: Seq[Slice]
) extends InputPartition

/** An object: its key for people, its address for the reader, its size as the manifest says.
  *
  * `offsets` are those of its segment, for error texts.
  */
final case class ObjectAddress(key: String, address: String, sizeBytes: Long, offsets: String)

/** The chunks of a segment that begin in [start, end): `ranges` if the planner knows them. */
final case class Slice(
    log: ObjectAddress,
    meta: ObjectAddress,
    baseOffset: Long,
    endOffset: Long,
    recordCount: Long,
    crc32c: Int,
    metaCrc32c: Int,
    hasTransactions: Boolean,
    start: Long,
    end: Long,
    ranges: Seq[ChunkRange],
    asksStatistics: Boolean
)

/** Consecutive wanted chunks: bytes of the log, its offsets, and the records they must hold. */
final case class ChunkRange(
    start: Long,
    end: Long,
    baseOffset: Long,
    endOffset: Long,
    recordCount: Long,
    checksums: Vector[ChunkChecksum] = Vector.empty
)

/** The checksum of a chunk's bytes, which end at this position of the log. */
final case class ChunkChecksum(end: Long, crc32c: Int)

object ChunkChecksum {
  /** None where the `.meta` has none. */
  def of(end: Long, crc32c: JsonNode): Vector[ChunkChecksum] =
    if (crc32c == null) Vector.empty
    else Vector(ChunkChecksum(end, crc32c.longValue.toInt))
}

object Plan {
  final val Format = 3
  private val json = new ObjectMapper

  /** Raises WrongPlan for whatever is not a plan of this format. */
  def decode(text: String): Plan =
    try {
      val packed = new ByteArrayInputStream(Base64.getDecoder.decode(text))
      read(json.readTree(new GZIPInputStream(packed)))
    } catch {
      case error @ (_: IOException | _: RuntimeException) if !error.isInstanceOf[WrongPlan] =>
        throw new WrongPlan(s"the plan of this query is unreadable: ${error.getMessage}", error)
    }

  private def read(node: JsonNode): Plan = {
    if (node.path("format").asInt != Format)
      throw new WrongPlan(
        s"the plan of this query has format ${node.path("format")}, this jar reads $Format: start" +
          " a new Spark session, so that jar and package are of the same release")
    Plan(
      columns = items(node, "columns").map(_.asText).toVector,
      description = node.path("description").asText,
      bytes = node.path("bytes").asLong,
      settings = settings(need(node, "settings")),
      splits = items(node, "splits").map(split).toVector
    )
  }

  private def settings(node: JsonNode): Settings = Settings(
    url = need(node, "url").asText,
    readUncommitted = need(node, "read_uncommitted").asBoolean,
    windowBytes = need(node, "window_bytes").asInt,
    connectTimeoutMs = need(node, "connect_timeout_ms").asInt,
    readTimeoutMs = need(node, "read_timeout_ms").asInt,
    attemptsMax = need(node, "attempts_max").asInt,
    signedUntilMs = need(node, "signed_until_ms").asLong,
    texts = need(node, "texts").properties.asScala.map(one => one.getKey -> one.getValue.asText).toMap
  )

  private def split(node: JsonNode): Split = {
    val limits = need(node, "limits")
    Split(
      topic = need(node, "topic").asText,
      partition = need(node, "partition").asInt,
      limits = RowLimits(
        limits.get(0).longValue, limits.get(1).longValue,
        limits.get(2).longValue, limits.get(3).longValue),
      slices = items(node, "slices").map(slice).toVector
    )
  }

  private def slice(node: JsonNode): Slice = Slice(
    log = address(need(node, "log")),
    meta = address(need(node, "meta")),
    baseOffset = need(node, "base_offset").longValue,
    endOffset = need(node, "end_offset").longValue,
    recordCount = need(node, "record_count").longValue,
    crc32c = need(node, "crc32c").longValue.toInt,
    metaCrc32c = need(node, "meta_crc32c").longValue.toInt,
    hasTransactions = need(node, "has_transactions").asBoolean,
    start = need(node, "start").longValue,
    end = need(node, "end").longValue,
    ranges = items(node, "ranges").map { one =>
      ChunkRange(
        one.get(0).longValue, one.get(1).longValue, one.get(2).longValue,
        one.get(3).longValue, one.get(4).longValue,
        ChunkChecksum.of(one.get(1).longValue, one.get(5)))
    }.toVector,
    asksStatistics = need(node, "asks_statistics").asBoolean
  )

  private def address(node: JsonNode): ObjectAddress =
    ObjectAddress(
      node.get(0).asText, node.get(1).asText, node.get(2).longValue, node.get(3).asText)

  private def items(node: JsonNode, name: String): Iterator[JsonNode] =
    need(node, name).elements.asScala

  private def need(node: JsonNode, name: String): JsonNode = {
    val found = node.get(name)
    if (found == null) throw new WrongPlan(s"the plan of this query has no $name")
    found
  }
}
