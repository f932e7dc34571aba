package strandline.spark

import java.io.{ByteArrayInputStream, InputStream}
import java.util.Arrays
import java.util.zip.GZIPInputStream

import com.github.luben.zstd.{Zstd, ZstdDecompressCtx, ZstdException, ZstdInputStreamNoFinalizer}
import net.jpountz.lz4.LZ4FrameInputStream
import org.xerial.snappy.Snappy

/** Decompressed batches, one behind the other in one array that is used again and again.
  *
  * Framings and bounds are those of `storage/records/compression.py`: snappy raw or in xerial's
  * stream, lz4 frames, and at most BytesMax for a batch, whatever a few bytes claim to become.
  * The libraries are those that Spark itself brings.
  */
final class Unpacked extends AutoCloseable {
  import Codecs._

  var bytes = new Array[Byte](1 << 20)
  var used = 0

  private var zstd: ZstdDecompressCtx = null
  // The largest ratio so far: streams of Java's producers do not say how much they hold.
  private var likelyRatio = 4

  /** Puts the records behind those that are there; they are bytes(used before .. used). */
  def add(codec: Int, source: Array[Byte], start: Int, length: Int): Unit =
    try {
      codec match {
        case Gzip => drain(new GZIPInputStream(stream(source, start, length), BufferBytes))
        case SnappyCodec => unsnappy(source, start, length)
        case Lz4 => drain(new LZ4FrameInputStream(stream(source, start, length), true))
        case ZstdCodec => unzstd(source, start, length)
        case _ => throw new CorruptRecords(s"compression codec $codec is unknown")
      }
    } catch {
      case error: CorruptRecords => throw error
      case error: Exception =>
        throw new CorruptRecords(
          s"${Names(codec)} data do not decompress: ${error.getMessage}", error)
    }

  override def close(): Unit = if (zstd != null) zstd.close()

  private def stream(source: Array[Byte], start: Int, length: Int): InputStream =
    new ByteArrayInputStream(source, start, length)

  /** Room for this many bytes more; what is there stays. */
  private def reserve(length: Int): Unit = {
    val needed = used.toLong + length
    if (needed > ArrayMax) throw new CorruptRecords(s"decompressed records exceed $BytesMax bytes")
    if (needed > bytes.length) {
      val more = math.min(bytes.length, GrowthMax)
      val size = math.min(ArrayMax, math.max(needed, bytes.length.toLong + more)).toInt
      bytes =
        try Arrays.copyOf(bytes, size)
        catch {
          // One array was not made, and nothing is broken. As an Error it would end the JVM, and
          // with it what others compute there.
          case _: OutOfMemoryError =>
            bytes = new Array[Byte](0)
            throw new CorruptRecords(
              s"a batch becomes more than $used bytes when it is decompressed, and " +
                s"the JVM has no memory for $size (its heap may have " +
                s"${Runtime.getRuntime.maxMemory}): give executors more " +
                "(spark.executor.memory; with a local master spark.driver.memory)")
        }
    }
  }

  private def refuse(length: Long): Unit =
    if (length > BytesMax) throw new CorruptRecords(s"decompressed records exceed $BytesMax bytes")

  private def drain(from: InputStream): Unit =
    try {
      val start = used
      var ended = false
      while (!ended) {
        reserve(BufferBytes)
        val count = from.read(bytes, used, bytes.length - used)
        if (count < 0) ended = true
        else used += count
        refuse(used - start)
      }
    } finally from.close()

  private def unsnappy(source: Array[Byte], start: Int, length: Int): Unit = {
    val end = start + length
    if (!isXerialAt(source, start, end)) snappyBlock(source, start, length)
    else {
      val first = used
      var at = start + XerialHeaderBytes
      while (at < end) {
        // One stream behind the other is one to Java.
        if (isXerialAt(source, at, end)) at += XerialHeaderBytes
        else {
          if (end - at < 4) throw new CorruptRecords("snappy stream ends inside a block length")
          val block = Bytes.int(source, at)
          at += 4
          if (block < 0 || block > end - at)
            throw new CorruptRecords(s"snappy block of $block bytes exceeds its stream")
          snappyBlock(source, at, block)
          refuse(used - first)
          at += block
        }
      }
    }
  }

  private def isXerialAt(source: Array[Byte], at: Int, end: Int): Boolean =
    end - at >= XerialMagic.length &&
      Arrays.equals(source, at, at + XerialMagic.length, XerialMagic, 0, XerialMagic.length)

  private def snappyBlock(source: Array[Byte], start: Int, length: Int): Unit = {
    val claimed = Snappy.uncompressedLength(source, start, length)
    refuse(if (claimed < 0) Long.MaxValue else claimed)
    reserve(claimed)
    used += Snappy.uncompress(source, start, length, bytes, used)
  }

  private def unzstd(source: Array[Byte], start: Int, length: Int): Unit = {
    if (zstd == null) zstd = new ZstdDecompressCtx
    val claimed = Zstd.getFrameContentSize(source, start, length)
    if (claimed > 0) refuse(claimed)
    val likely = if (claimed > 0) claimed else math.max(64L * 1024, likelyRatio.toLong * length)
    if (!unzstdAtOnce(source, start, length, likely))
      drain(new ZstdInputStreamNoFinalizer(stream(source, start, length)))
  }

  /** Into as much room as is likely enough, which is several times as fast as a stream.
    *
    * What the first frame claims is not enough where another one lies behind it.
    */
  private def unzstdAtOnce(
      source: Array[Byte], start: Int, length: Int, likely: Long): Boolean = {
    var isDone = false
    var room = likely
    while (!isDone && room <= TrustedBytesMax) {
      reserve(room.toInt)
      try {
        val made = zstd.decompressByteArray(bytes, used, room.toInt, source, start, length)
        used += made
        likelyRatio = math.max(likelyRatio, made / math.max(1, length) + 1)
        isDone = true
      } catch {
        case error: ZstdException if error.getErrorCode == Zstd.errDstSizeTooSmall =>
          room *= 4
      }
    }
    isDone
  }
}

object Codecs {
  final val None = 0
  final val Gzip = 1
  final val SnappyCodec = 2
  final val Lz4 = 3
  final val ZstdCodec = 4
  val Names: Map[Int, String] = Map(1 -> "gzip", 2 -> "snappy", 3 -> "lz4", 4 -> "zstd")

  // As `DECOMPRESSED_BYTES_MAX` of the Python reader.
  final val BytesMax = 512L * 1024 * 1024
  final val ArrayMax = Int.MaxValue - 8L
  final val TrustedBytesMax = 16L * 1024 * 1024
  final val BufferBytes = 64 * 1024
  // An array of this size and more is not doubled: that may be more than there is.
  final val GrowthMax = 64 * 1024 * 1024
  val XerialMagic: Array[Byte] = Array[Byte](0x82.toByte, 'S', 'N', 'A', 'P', 'P', 'Y', 0)
  final val XerialHeaderBytes = 16
}

/** Big-endian numbers. */
object Bytes {

  def int(bytes: Array[Byte], at: Int): Int =
    (bytes(at) << 24) | ((bytes(at + 1) & 0xff) << 16) | ((bytes(at + 2) & 0xff) << 8) |
      (bytes(at + 3) & 0xff)

  def short(bytes: Array[Byte], at: Int): Int = (bytes(at) << 8) | (bytes(at + 1) & 0xff)

  def long(bytes: Array[Byte], at: Int): Long =
    (int(bytes, at).toLong << 32) | (int(bytes, at + 4) & 0xffffffffL)
}
