package strandline.spark

import java.util.{EnumSet, OptionalLong}
import java.util.{Map => JavaMap, Set => JavaSet}

import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatch}

/** The source inside the JVM: executes a plan made in Python, and returns columns.
  *
  * {{{
  *   option plan   what `strandline.spark_lake.load` planned; see `Plan`
  *   driver        prunes columns, hands each task its split
  *   task          windows of the log -> checked batches -> rows whose bytes stay in place
  * }}}
  */
class ArchiveSource extends TableProvider {
  // Spark asks the same object for the schema, then for the table.
  private var decoded: (String, Plan) = ("", null)

  override def inferSchema(options: CaseInsensitiveStringMap): StructType =
    Schema.of(plan(options).columns)

  override def getTable(
      schema: StructType, partitioning: Array[Transform], properties: JavaMap[String, String]
  ): Table = new ArchiveTable(schema, plan(new CaseInsensitiveStringMap(properties)))

  private def plan(options: CaseInsensitiveStringMap): Plan = {
    val text = options.get("plan")
    if (text == null)
      throw new WrongPlan("this source is used by strandline.spark_lake, not by its name")
    if (text != decoded._1) decoded = (text, Plan.decode(text))
    decoded._2
  }
}

final class ArchiveTable(kind: StructType, plan: Plan) extends Table with SupportsRead {
  override def name: String = s"strandline ${plan.settings.url}"
  override def schema: StructType = kind
  override def capabilities: JavaSet[TableCapability] = EnumSet.of(TableCapability.BATCH_READ)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    new ArchiveScanBuilder(kind, plan)
}

final class ArchiveScanBuilder(all: StructType, plan: Plan)
    extends ScanBuilder with SupportsPushDownRequiredColumns {
  private var wanted = all
  override def pruneColumns(required: StructType): Unit =
    wanted = Schema.named(all, required.fieldNames)
  override def build: Scan = new ArchiveScan(wanted, plan)
}

final class ArchiveScan(kind: StructType, plan: Plan)
    extends Scan with Batch with SupportsReportStatistics {
  override def readSchema: StructType = kind
  override def description: String = plan.description
  override def toBatch: Batch = this
  override def columnarSupportMode: Scan.ColumnarSupportMode = Scan.ColumnarSupportMode.SUPPORTED
  override def planInputPartitions: Array[InputPartition] = plan.splits.toArray
  override def createReaderFactory: PartitionReaderFactory =
    new ArchiveReaderFactory(kind, plan.settings)

  override def estimateStatistics: Statistics = Size(Some(plan.bytes))
}

/** Bytes of the archive; if they are unknown, Spark takes it for large. */
final case class Size(bytes: Option[Long]) extends Statistics {
  override def sizeInBytes: OptionalLong =
    bytes.fold(OptionalLong.empty)(OptionalLong.of(_))
  override def numRows: OptionalLong = OptionalLong.empty
}

final class ArchiveReaderFactory(kind: StructType, settings: Settings)
    extends PartitionReaderFactory {
  override def supportColumnarReads(split: InputPartition): Boolean = true
  override def createReader(split: InputPartition): PartitionReader[InternalRow] =
    throw new UnsupportedOperationException("rows come in columns")
  override def createColumnarReader(split: InputPartition): PartitionReader[ColumnarBatch] =
    new ArchiveReader(kind, split.asInstanceOf[Split], settings)
}

/** One split as columnar batches, in offset order. */
final class ArchiveReader(kind: StructType, split: Split, settings: Settings)
    extends PartitionReader[ColumnarBatch] {
  import BatchTable._

  private val reader = new ObjectReader(settings)
  private val feed = new WindowFeed(reader, split, settings)
  private val windows = new LogWindows(reader, feed, settings)
  private val unpacked = new Unpacked
  private val names = kind.fieldNames
  private val rows =
    new Rows(split.limits, names.contains("timestamp"), names.contains("headers"))
  private val columns = new Columns(kind, split)
  private var at = 0 // the next batch of the block
  private var made: ColumnarBatch = null

  override def next(): Boolean =
    try {
      rows.clear()
      while (!isFull && advance()) rows.decode()
      made = if (rows.count > 0) columns.of(rows) else null
      made != null
    } catch {
      case error: ArchiveException => throw error.forDriver
      case error: CorruptRecords =>
        throw new ObjectCorrupt(
          s"${settings.url}/${windows.slice.log.key}", "decode",
          s"${error.getMessage}; ${settings.texts("decode")}").forDriver
    }

  override def get(): ColumnarBatch = made

  override def close(): Unit = {
    reader.close()
    feed.close()
    unpacked.close()
  }

  private def isFull: Boolean = rows.count == Rows.RowsMax

  /** Whether there is a batch to decode whose payload is that of the rows so far. */
  private def advance(): Boolean = {
    while (!rows.isInside) {
      if (at == windows.found.count) {
        // The arrays of the rows must not be filled again while they are read.
        if (rows.count > 0) return false
        at = 0
        if (!windows.next()) return false
      }
      val found = windows.found
      val bytes = windows.payload
      val attributes = found.attributes(bytes, at)
      val codec = attributes & CodecMask
      if (isWanted(attributes)) {
        val start = found.starts(at) + HeaderBytes
        val end = found.ends(at)
        val isEmpty = found.recordCounts(at) == 0 && start == end
        if (!isEmpty && codec == Codecs.None) {
          if (rows.count > 0 && (rows.payload ne bytes)) return false
          rows.begin(found.batch(bytes, at, bytes, start, end))
        } else if (!isEmpty) {
          if (rows.count == 0) unpacked.used = 0
          else if ((rows.payload ne unpacked.bytes) || unpacked.used >= RunBytesMax) return false
          val from = unpacked.used
          unpacked.add(codec, bytes, start, end - start)
          // A larger array holds what the rows so far are about, too.
          if (rows.count > 0) rows.payload = unpacked.bytes
          rows.begin(found.batch(bytes, at, unpacked.bytes, from, unpacked.used))
        }
      }
      at += 1
    }
    true
  }

  /** Control batches never, aborted transactions unless asked for, nothing outside the limits. */
  private def isWanted(attributes: Int): Boolean = {
    val found = windows.found
    val base = found.baseOffsets(at)
    val aborted = windows.aborted
    (attributes & ControlBit) == 0 &&
    found.lastOffset(at) >= split.limits.startOffset && base < split.limits.endOffset &&
    (aborted.isEmpty || (attributes & TransactionalBit) == 0 ||
      !aborted.contains(found.producerId(windows.payload, at), base))
  }

  // Decompressed batches are gathered up to this size, so that a batch of rows is worth its calls.
  private final val RunBytesMax = 2 * 1024 * 1024
}

/** The columns of a query over rows; names and types are those of Spark's Kafka source. */
final class Columns(kind: StructType, split: Split) {
  def of(rows: Rows): ColumnarBatch = {
    val vectors = kind.fieldNames.map[ColumnVector] {
      case "key" => new Binaries(rows.payload, rows.keys, rows.count)
      case "value" => new Binaries(rows.payload, rows.values, rows.count)
      case "topic" => new SameText(split.topic)
      case "partition" => new SameInt(split.partition)
      case "offset" => new Longs(LongType, rows.offsets)
      case "timestamp" => new Longs(TimestampType, rows.micros)
      case "timestampType" => new Ints(rows.timestampTypes)
      case _ =>
        val keys = new Texts(rows.payload, rows.headerKeys)
        val values = new Binaries(rows.payload, rows.headerValues, rows.headerCount)
        new Lists(Schema.headers, rows.headers, new Pairs(Schema.header, keys, values))
    }
    new ColumnarBatch(vectors, rows.count)
  }
}

object Schema {
  val header: StructType = new StructType().add("key", StringType).add("value", BinaryType)
  val headers: ArrayType = ArrayType(header)

  private val kinds: Map[String, DataType] = Map(
    "key" -> BinaryType,
    "value" -> BinaryType,
    "topic" -> StringType,
    "partition" -> IntegerType,
    "offset" -> LongType,
    "timestamp" -> TimestampType,
    "timestampType" -> IntegerType,
    "headers" -> headers
  )

  /** The whole columns of these names: Spark also leaves out fields of headers and values. */
  def named(all: StructType, names: Seq[String]): StructType =
    StructType(all.filter(one => names.contains(one.name)))

  /** A column that is the same for all rows of a task, if there is one. */
  def cheapest(all: StructType): Seq[String] =
    Seq("partition", "topic").find(all.fieldNames.contains).orElse(all.fieldNames.headOption).toSeq

  def of(columns: Seq[String]): StructType = StructType(columns.map { name =>
    StructField(name, kinds.getOrElse(name, throw new WrongPlan(s"no column is named $name")))
  })
}
