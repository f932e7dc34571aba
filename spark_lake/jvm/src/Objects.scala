package strandline.spark

import java.io.{EOFException, FileNotFoundException, IOException, InputStream}
import java.net.{HttpURLConnection, URL}
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{
  AccessDeniedException, InvalidPathException, NoSuchFileException, Paths, StandardOpenOption}

/** Ranges of objects: of files, or of a bucket through URLs that the planner signed.
  *
  * Tasks hold no credentials and no S3 library. A read has a deadline for its connection, for
  * silence, and for all of it; what may be better the next time (a dropped connection, 5xx, too
  * many requests) is tried `attemptsMax` times. 404, 403 and too few bytes are errors at once,
  * in the words of the Python reader.
  *
  * A GET may ask for more than a read wants (`upTo`): its rest is for the reads that go on where it
  * ended, and stays in the sockets until then. So a log costs few requests, and the bucket sends
  * while a window is looked at. A rest that is not wanted, or that broke, is dropped.
  *
  * One thread at a time reads; `close` may come from another one and ends a read.
  */
final class ObjectReader(settings: Settings) extends AutoCloseable {
  import ObjectReader._

  @volatile private var isClosed = false
  @volatile private var connection: HttpURLConnection = null
  private var rest: OpenRange = null
  private val chunk = new Array[Byte](4096)

  /** Exactly the bytes [start, end) into `target` from `at`. Raises an ArchiveException. */
  def read(
      one: ObjectAddress, start: Long, end: Long, target: Array[Byte], at: Int, upTo: Long = 0
  ): Unit =
    if (one.address.startsWith("http"))
      fromBucket(one, start, end, target, at, math.max(end, upTo))
    else fromFile(one, start, end, target, at)

  override def close(): Unit = {
    isClosed = true
    val open = connection
    if (open != null) open.disconnect()
  }

  private def name(one: ObjectAddress): String = s"${settings.url}/${one.key}"

  private def fromFile(
      one: ObjectAddress, start: Long, end: Long, target: Array[Byte], at: Int): Unit =
    try {
      val channel = FileChannel.open(Paths.get(one.address), StandardOpenOption.READ)
      try {
        val into = ByteBuffer.wrap(target, at, (end - start).toInt)
        var position = start
        while (into.hasRemaining) {
          val count = channel.read(into, position)
          if (count < 0) throw tooShort(one, start, end, position - start)
          position += count
        }
      } finally channel.close()
    } catch {
      case error: ArchiveException => throw error
      case _: NoSuchFileException | _: FileNotFoundException => throw missing(one)
      case error: AccessDeniedException => throw denied(one, error.toString)
      // A folder with other letters than Java's locale has, which began without one.
      case _: InvalidPathException =>
        val names = System.getProperty("sun.jnu.encoding")
        throw new TierUnavailable(
          name(one), "read",
          s"Java takes names of files for $names here, and this is none: start the driver and the" +
            " executors with LC_ALL=C.UTF-8, or give option engine=python")
      case error: IOException => throw new TierUnavailable(name(one), "read", error.toString, error)
    }

  private def fromBucket(
      one: ObjectAddress, start: Long, end: Long, target: Array[Byte], at: Int, upTo: Long
  ): Unit = {
    val deadline = System.nanoTime + RangeDeadlineMs * 1000000L
    var attempt = 1
    var isDone = goesOn(one, start, end, target, at, deadline)
    while (!isDone)
      try {
        rest = get(one, start, end, upTo)
        take(end, target, at, deadline)
        isDone = true
      } catch {
        case error: ArchiveException if !error.isInstanceOf[TierUnavailable] => throw error
        case error: IOException =>
          if (attempt >= settings.attemptsMax || isClosed || System.nanoTime >= deadline)
            throw error match {
              case known: ArchiveException => known
              case _ => new TierUnavailable(name(one), "read", error.toString, error)
            }
          Thread.sleep(PauseMs << attempt)
          attempt += 1
      }
  }

  /** Whether the rest of the GET before had these bytes. */
  private def goesOn(
      one: ObjectAddress, start: Long, end: Long, target: Array[Byte], at: Int, deadline: Long
  ): Boolean =
    if (rest == null || rest.of != one || rest.position != start || rest.end < end) {
      drop()
      false
    } else
      try {
        take(end, target, at, deadline)
        true
      } catch {
        // The connection idled for as long as the rows took, and no bucket waits for ever. What is
        // wrong with it beyond that is seen when the same bytes are asked for.
        case _: IOException => false
      }

  /** Asks for [start, upTo); of an object that ends before, what there is from `start` to `end`. */
  private def get(one: ObjectAddress, start: Long, end: Long, upTo: Long): OpenRange = {
    val open = new URL(one.address).openConnection.asInstanceOf[HttpURLConnection]
    connection = open
    var isGood = false
    try {
      // `close` may have come before there was anything to disconnect.
      if (isClosed) throw new IOException("the task has ended")
      open.setConnectTimeout(settings.connectTimeoutMs)
      open.setReadTimeout(settings.readTimeoutMs)
      open.setInstanceFollowRedirects(false)
      open.setUseCaches(false)
      open.setRequestProperty("Range", s"bytes=$start-${upTo - 1}")
      // Else Java asks for anything but mostly HTML, which a signature might not cover.
      open.setRequestProperty("Accept", "*/*")
      open.getResponseCode match {
        case 206 => ()
        case status => refuse(one, status, open.getErrorStream)
      }
      val length = open.getContentLengthLong
      if (length >= 0 && (length < end - start || length > upTo - start))
        throw tooShort(one, start, end, length)
      val made = new OpenRange(
        one, open.getInputStream, start, if (length < 0) upTo else start + length)
      isGood = true
      made
    } finally if (!isGood) drop()
  }

  /** The bytes of the open range up to `end`. */
  private def take(end: Long, target: Array[Byte], at: Int, deadline: Long): Unit = {
    var isWhole = false
    try {
      var filled = at
      val last = at + (end - rest.position).toInt
      while (filled < last) {
        val count = rest.body.read(target, filled, last - filled)
        if (count < 0) throw new EOFException(s"the connection ended after ${filled - at} bytes")
        filled += count
        if (System.nanoTime >= deadline)
          throw new IOException(s"${filled - at} bytes came in ${RangeDeadlineMs / 1000} s")
      }
      rest.position = end
      if (end == rest.end) {
        // What has been read to its end goes back to the connections that are kept.
        rest.body.close()
        rest = null
        connection = null
      }
      isWhole = true
    } finally if (!isWhole) drop()
  }

  private def drop(): Unit = {
    rest = null
    val open = connection
    connection = null
    if (open != null) open.disconnect()
  }

  private def refuse(one: ObjectAddress, status: Int, answer: InputStream): Nothing = {
    val said = if (answer == null) "" else text(answer)
    val code = Code.findFirstMatchIn(said).map(_.group(1)).getOrElse("")
    val about = s"status $status${if (code.isEmpty) "" else s" $code"}"
    status match {
      case _ if code == "InvalidObjectState" =>
        throw new ObjectArchived(name(one), "read", settings.texts("archived"))
      case _ if settings.signedUntilMs > 0 && System.currentTimeMillis >= settings.signedUntilMs =>
        throw new AccessDenied(name(one), "read", settings.texts("expired"))
      case 404 => throw missing(one)
      case 416 =>
        throw new ObjectCorrupt(name(one), "read", s"${settings.texts("shorter")}; ${one.offsets}")
      case 401 | 403 => throw denied(one, about)
      case 400 if code == "ExpiredToken" => throw denied(one, about)
      case _ => throw new TierUnavailable(name(one), "read", s"the bucket answered $about")
    }
  }

  private def text(from: InputStream): String =
    try new String(chunk, 0, math.max(0, from.readNBytes(chunk, 0, chunk.length)), "UTF-8")
    catch { case _: IOException => "" }
    finally from.close()

  private def missing(one: ObjectAddress) =
    new ObjectNotFound(name(one), "read", s"${settings.texts("missing")}; ${one.offsets}")

  private def denied(one: ObjectAddress, why: String) =
    new AccessDenied(name(one), "read", s"$why; ${settings.texts("denied")}")

  private def tooShort(one: ObjectAddress, start: Long, end: Long, came: Long) =
    new ObjectCorrupt(
      name(one), "read",
      s"bytes $start to $end were asked for, $came came: ${settings.texts("fewer")}; ${one.offsets}")
}

/** A body that has been read up to `position`, of an object's bytes up to `end`. */
final private class OpenRange(
    val of: ObjectAddress, val body: InputStream, var position: Long, val end: Long)

object ObjectReader {
  // One range, with all its attempts.
  private final val RangeDeadlineMs = 180000L
  private final val PauseMs = 100L
  private val Code = "<Code>([A-Za-z0-9]+)</Code>".r
}
