package strandline.spark

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatch}
import org.apache.spark.unsafe.types.UTF8String
import scala.collection.mutable.ArrayBuffer

/** Splits that are read here, and behind them partitions that tasks in Python read.
  *
  * {{{
  *   partitions   [Split][Split]...[PythonInputPartition]...
  *   reader       ArchiveReader     Gathered, over the rows of Python's reader
  * }}}
  *
  * A scan has columns in all of its partitions or in none. As rows the splits here would be copied
  * once more, and they are most; Python's are pieces of open segments, and messages of old formats.
  */
final class MixedBatch(
    kind: StructType, here: Batch, others: Batch, partitions: Array[InputPartition]
) extends Batch {
  override def planInputPartitions: Array[InputPartition] = here.planInputPartitions ++ partitions
  override def createReaderFactory: PartitionReaderFactory =
    new MixedReaderFactory(kind, here.createReaderFactory, others.createReaderFactory)
}

final class MixedReaderFactory(
    kind: StructType, here: PartitionReaderFactory, others: PartitionReaderFactory
) extends PartitionReaderFactory {
  override def supportColumnarReads(partition: InputPartition): Boolean = true
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    throw new UnsupportedOperationException("rows come in columns")
  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] =
    partition match {
      case split: Split => here.createColumnarReader(split)
      case other => new Gathered(kind, others.createReader(other))
    }
}

/** Rows in columns, a few at a time: each may be as large as a record can be. */
final class Gathered(kind: StructType, rows: PartitionReader[InternalRow])
    extends PartitionReader[ColumnarBatch] {
  private var made: ColumnarBatch = null

  override def next(): Boolean = {
    val gathered = new ArrayBuffer[InternalRow](Gathered.RowsMax)
    // A reader may fill the same row again.
    while (gathered.length < Gathered.RowsMax && rows.next()) gathered += rows.get.copy()
    made =
      if (gathered.isEmpty) null
      else new ColumnarBatch(columns(gathered.toArray), gathered.length)
    made != null
  }
  override def get(): ColumnarBatch = made
  override def close(): Unit = rows.close()

  private def columns(of: Array[InternalRow]): Array[ColumnVector] =
    kind.fields.zipWithIndex.map { case (field, ordinal) =>
      field.dataType match {
        case _: ArrayType => Gathered.headers(of, ordinal)
        case other => new Fields(other, of, ordinal): ColumnVector
      }
    }
}

object Gathered {
  final val RowsMax = 64

  /** What a columnar array needs: all elements of all rows, one behind the other. */
  private def headers(rows: Array[InternalRow], ordinal: Int): ColumnVector = {
    val places = new Places(rows.length)
    val all = new ArrayBuffer[InternalRow]
    for (row <- rows.indices) {
      val first = all.length
      if (!rows(row).isNullAt(ordinal)) {
        val elements = rows(row).getArray(ordinal)
        for (at <- 0 until elements.numElements)
          all += elements.getStruct(at, Schema.header.length)
      }
      places.put(row, first, all.length - first)
    }
    val flat = all.toArray
    val pairs =
      new Pairs(Schema.header, new Fields(StringType, flat, 0), new Fields(BinaryType, flat, 1))
    new Lists(Schema.headers, places, pairs)
  }
}

/** One field of rows. */
final class Fields(kind: DataType, rows: Array[InternalRow], ordinal: Int) extends Column(kind) {
  override def hasNull: Boolean = true
  override def numNulls: Int = rows.count(_.isNullAt(ordinal))
  override def isNullAt(row: Int): Boolean = rows(row).isNullAt(ordinal)
  override def getInt(row: Int): Int = rows(row).getInt(ordinal)
  override def getLong(row: Int): Long = rows(row).getLong(ordinal)
  override def getUTF8String(row: Int): UTF8String =
    if (isNullAt(row)) null else rows(row).getUTF8String(ordinal)
  override def getBinary(row: Int): Array[Byte] =
    if (isNullAt(row)) null else rows(row).getBinary(ordinal)
}
