package strandline.spark

import java.nio.charset.StandardCharsets.UTF_8

import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarArray, ColumnarMap}
import org.apache.spark.unsafe.types.UTF8String

/** Columns of Spark over bytes that stay where they are.
  *
  * {{{
  *   payload   ....|key|value.....|....|value.........|...      a window, or decompressed batches
  *   starts         ^                   ^                        one of each per row
  *   lengths        3                   14                       -1 for null
  * }}}
  *
  * Spark copies a value once, when it asks for it (`getBinary`); an unused column costs
  * nothing. As with each columnar source, a batch is good until the next one is asked for.
  *
  * Only public, stable parts of Spark (`ColumnVector`) are used, none of `execution.vectorized`.
  */
abstract class Column(kind: DataType) extends ColumnVector(kind) {
  private def not: Nothing = throw new UnsupportedOperationException(s"of a column of $dataType")
  override def close(): Unit = ()
  override def hasNull: Boolean = numNulls > 0
  override def numNulls: Int = 0
  override def isNullAt(row: Int): Boolean = false
  override def getBoolean(row: Int): Boolean = not
  override def getByte(row: Int): Byte = not
  override def getShort(row: Int): Short = not
  override def getInt(row: Int): Int = not
  override def getLong(row: Int): Long = not
  override def getFloat(row: Int): Float = not
  override def getDouble(row: Int): Double = not
  override def getArray(row: Int): ColumnarArray = not
  override def getMap(row: Int): ColumnarMap = not
  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = not
  override def getUTF8String(row: Int): UTF8String = not
  override def getBinary(row: Int): Array[Byte] = not
  override def getChild(ordinal: Int): ColumnVector = not
}

/** The same number, or text, in every row. */
final class SameInt(value: Int) extends Column(IntegerType) {
  override def getInt(row: Int): Int = value
}

final class SameText(value: String) extends Column(StringType) {
  private val text = UTF8String.fromString(value)
  override def getUTF8String(row: Int): UTF8String = text
}

final class Longs(kind: DataType, values: Array[Long]) extends Column(kind) {
  override def getLong(row: Int): Long = values(row)
}

final class Ints(values: Array[Int]) extends Column(IntegerType) {
  override def getInt(row: Int): Int = values(row)
}

/** Where the values of a column lie in the payload; grows, and is used again for each batch. */
final class Places(capacity: Int) {
  var starts = new Array[Int](capacity)
  var lengths = new Array[Int](capacity)

  def put(row: Int, start: Int, length: Int): Unit = {
    if (row >= starts.length) {
      starts = java.util.Arrays.copyOf(starts, 2 * starts.length)
      lengths = java.util.Arrays.copyOf(lengths, 2 * lengths.length)
    }
    starts(row) = start
    lengths(row) = length
  }
}

/** Binary values. `rows` is how many there are, which only counting nulls needs. */
final class Binaries(payload: Array[Byte], places: Places, rows: Int) extends Column(BinaryType) {
  private val starts = places.starts
  private val lengths = places.lengths

  override def numNulls: Int = {
    var nulls = 0
    var row = 0
    while (row < rows) {
      if (lengths(row) < 0) nulls += 1
      row += 1
    }
    nulls
  }
  override def hasNull: Boolean = true
  override def isNullAt(row: Int): Boolean = lengths(row) < 0
  override def getBinary(row: Int): Array[Byte] = {
    val length = lengths(row)
    if (length < 0) null
    else {
      val start = starts(row)
      java.util.Arrays.copyOfRange(payload, start, start + length)
    }
  }
}

/** Keys of headers. What is no UTF-8 is replaced, as Java's Kafka client does. */
final class Texts(payload: Array[Byte], places: Places) extends Column(StringType) {
  private val starts = places.starts
  private val lengths = places.lengths

  override def getUTF8String(row: Int): UTF8String = {
    val start = starts(row)
    val end = start + lengths(row)
    var at = start
    while (at < end && payload(at) >= 0) at += 1
    if (at == end) UTF8String.fromBytes(payload, start, end - start)
    else UTF8String.fromString(new String(payload, start, end - start, UTF_8))
  }
}

/** Two columns beside each other. */
final class Pairs(kind: StructType, left: ColumnVector, right: ColumnVector) extends Column(kind) {
  override def getChild(ordinal: Int): ColumnVector = if (ordinal == 0) left else right
}

/** Row `i` has the elements `starts(i)` and following; a row without any is null. */
final class Lists(kind: ArrayType, places: Places, elements: ColumnVector) extends Column(kind) {
  private val starts = places.starts
  private val lengths = places.lengths

  override def hasNull: Boolean = true
  override def isNullAt(row: Int): Boolean = lengths(row) == 0
  override def getArray(row: Int): ColumnarArray =
    new ColumnarArray(elements, starts(row), lengths(row))
  override def getChild(ordinal: Int): ColumnVector = elements
}
