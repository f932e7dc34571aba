package strandline.spark

import java.util.HashMap
import java.util.{Map => JavaMap, Set => JavaSet}

import net.razorvine.pickle.Unpickler
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream
import org.apache.spark.sql.connector.write.{LogicalWriteInfo, WriteBuilder}
import org.apache.spark.sql.execution.datasources.v2.python.{PythonDataSourceV2, PythonInputPartition}
import org.apache.spark.sql.internal.connector.SupportsMetadata
import org.apache.spark.sql.sources.{DataSourceRegister, Filter}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** format("strandline"): Python plans each query, tasks here and in Python read it.
  *
  * {{{
  *   schema, streams, refusals   those of the Python source InPython.Name
  *   query                       filters -> a Python source of its own -> [plan][split][split]...
  *   plan                        splits for ArchiveReader; the others are read by tasks in Python
  * }}}
  *
  * Spark keeps the plan of a Python source beside the DataFrame, where the next query would read
  * it, filters and all: so each query has a source of its own.
  */
class StrandlineSource extends TableProvider with DataSourceRegister {
  // Spark makes one of these whenever it looks for the name of any format.
  private lazy val python = InPython.source

  override def shortName: String = "strandline"
  override def supportsExternalMetadata: Boolean = true
  override def inferSchema(options: CaseInsensitiveStringMap): StructType =
    python.inferSchema(options)
  override def getTable(
      schema: StructType, partitioning: Array[Transform], properties: JavaMap[String, String]
  ): Table = new StrandlineTable(schema, InPython.table(python, schema))
}

object InPython {
  final val Name = "strandline_python"

  type AnyTable = Table with SupportsRead with SupportsWrite

  /** The source that `register` gave Spark. */
  def source: PythonDataSourceV2 = {
    val made = new PythonDataSourceV2
    made.setShortName(Name)
    made
  }

  def table(source: PythonDataSourceV2, schema: StructType): AnyTable =
    source.getTable(schema, Array.empty, new HashMap).asInstanceOf[AnyTable]
}

final class StrandlineTable(kind: StructType, python: InPython.AnyTable)
    extends Table with SupportsRead with SupportsWrite {
  override def name: String = "strandline"
  override def schema: StructType = kind
  override def capabilities: JavaSet[TableCapability] = python.capabilities
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = python.newWriteBuilder(info)
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
    new StrandlineScanBuilder(
      kind, (columns, more) => InPython.table(InPython.source, columns).newScanBuilder(
        new CaseInsensitiveStringMap(joined(options, more))))

  private def joined(
      given: CaseInsensitiveStringMap, more: (String, String)
  ): JavaMap[String, String] = {
    val all = new HashMap[String, String](given.asCaseSensitiveMap)
    all.put(more._1, more._2)
    all
  }
}

/** Spark asks for filters first and for columns then; a Python source knows no columns.
  *
  * So the plan is that of a second source, with the columns of the query and of its filters. The
  * first says which filters it takes, and plans nothing.
  */
final class StrandlineScanBuilder(
    all: StructType, sourceOf: (StructType, (String, String)) => ScanBuilder
) extends SupportsPushDownFilters with SupportsPushDownRequiredColumns {
  private var wanted = all
  private var given = Array.empty[Filter]
  private var taken = Array.empty[Filter]

  override def pushFilters(filters: Array[Filter]): Array[Filter] =
    // Spark 4.0 has no filters for Python sources.
    sourceOf(all, "onlyfilters" -> "true") match {
      case taker: SupportsPushDownFilters if filters.nonEmpty =>
        given = filters
        val left = taker.pushFilters(filters)
        taken = taker.pushedFilters
        left
      case _ => filters
    }
  override def pushedFilters: Array[Filter] = taken
  override def pruneColumns(required: StructType): Unit = {
    val some = Schema.named(all, required.fieldNames ++ given.flatMap(_.references))
    // Rows without columns, of count(*), are none in Python.
    wanted = if (some.nonEmpty) some else Schema.named(all, Schema.cheapest(all))
  }
  override def build: Scan = {
    // Splits are cut for the tasks that run at once, which a Python worker cannot ask for.
    val slots = SparkSession.active.sparkContext.defaultParallelism.toString
    val planner = sourceOf(wanted, "taskslots" -> slots)
    planner match {
      case taker: SupportsPushDownFilters if given.nonEmpty => taker.pushFilters(given)
      case _ =>
    }
    new StrandlineScan(planner.build)
  }
}

final class StrandlineScan(python: Scan)
    extends Scan with SupportsReportStatistics with SupportsMetadata {
  private lazy val planned = Planned.of(python.toBatch, readSchema)
  // It has no plan. Spark says that it wants one before it asks anything else.
  private var isStream = false

  override def readSchema: StructType = python.readSchema
  override def toBatch: Batch = planned.batch
  override def toMicroBatchStream(checkpoint: String): MicroBatchStream = {
    isStream = true
    python.toMicroBatchStream(checkpoint)
  }
  override def supportedCustomMetrics: Array[CustomMetric] = python.supportedCustomMetrics
  override def reportDriverMetrics: Array[CustomTaskMetric] = python.reportDriverMetrics

  /** Columns of the JVM, or rows of Python: known once it is planned. */
  override def columnarSupportMode: Scan.ColumnarSupportMode =
    Scan.ColumnarSupportMode.PARTITION_DEFINED

  /** What is read of how much, where explain() and the UI show this scan. */
  override def description: String =
    if (isStream) python.description else planned.description
  override def getMetaData: Map[String, String] = python match {
    case told: SupportsMetadata => told.getMetaData + ("Planned" -> description)
    case _ => Map("Planned" -> description)
  }

  /** Without a size Spark would shuffle what it could broadcast. It plans next in any case. */
  override def estimateStatistics: Statistics = if (isStream) Size(None) else planned.size
}

/** The splits of a query by reader, and their size. */
final case class Planned(batch: Batch, description: String, size: Statistics)

object Planned {
  /** The first partition is the plan as text (see `PlannedReader`), the others are splits. */
  def of(inPython: Batch, kind: StructType): Planned = {
    val all = inPython.planInputPartitions
    val pickled = all.head.asInstanceOf[PythonInputPartition].pickedPartition
    val text = new Unpickler().loads(pickled).asInstanceOf[JavaMap[String, Any]].get("value")
    val plan = Plan.decode(text.asInstanceOf[String])
    val inside = new ArchiveScan(kind, plan)
    val size = Size(Some(plan.bytes))
    val others = all.tail
    if (plan.splits.isEmpty)
      Planned(new OnlyPython(inPython, others), s"${plan.description} (Python)", size)
    else if (others.isEmpty) Planned(inside, plan.description, size)
    else Planned(new MixedBatch(kind, inside, inPython, others), plan.description, size)
  }
}

final class OnlyPython(inPython: Batch, partitions: Array[InputPartition]) extends Batch {
  override def planInputPartitions: Array[InputPartition] = partitions
  override def createReaderFactory: PartitionReaderFactory = inPython.createReaderFactory
}
