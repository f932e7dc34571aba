package strandline.spark

import java.lang.ref.SoftReference
import java.util.ArrayDeque
import java.util.concurrent.{Callable, ExecutionException, ExecutorService, Executors, Future}
import java.util.concurrent.ThreadFactory

/** A range of a log that a task reads, and the transactions that are left out of it. */
final case class Part(slice: Slice, range: ChunkRange, aborted: AbortedTransactions)

/** Bytes [start, end) of a part's log, which begin behind the headroom of `bytes`. */
final class Window(val part: Part, val start: Long, val end: Long, val bytes: Array[Byte])

/** The windows of a split in order, one fetched ahead of its reader, from segment to segment.
  *
  * {{{
  *   slices   |--- log ---|---- log ----|-- log --|     and of some their `.meta`
  *   parts    [.........]   [....] [..] [.........]     what of a log is read
  *   windows  [1 ][2 ][3]   [4  ] [5 ] [6 ][7 ][8 ]     out of one GET for each part
  *             ^read ^fetched meanwhile
  * }}}
  *
  * A task would else wait for the first window of each segment, and its core with it. Two arrays
  * are used in turn: while the rows of one are read, the other is filled. So a task holds two
  * windows, however many segments it reads.
  *
  * One thread fetches, in order; what it alone changes (the cursor, the arrays' turn) is handed
  * over with each window. The reader of windows may use the `ObjectReader` itself when it has
  * settled what is under way.
  */
final class WindowFeed(reader: ObjectReader, split: Split, settings: Settings)
    extends AutoCloseable {
  private val thread: ExecutorService = WindowFeed.start()
  private val buffers = new WindowBuffers(settings.windowBytes)
  private var waiting: Future[Window] = null

  // The cursor, which only the thread that fetches moves.
  private val slices = split.slices.iterator
  private var parts = Iterator.empty[Part]
  private var part: Part = null
  private var fetched = 0L
  private var isFirst = true

  /** Begins to fetch the next window, if that has not begun, into the array that is not the last's.
    */
  def ask(): Unit =
    if (waiting == null)
      waiting = thread.submit(new Callable[Window] {
        override def call(): Window = fetch()
      })

  /** The next window, or null behind the last. Raises what fetching it did. */
  def take(): Window = {
    ask()
    // A task that is interrupted here leaves a fetch under way.
    val window =
      try waiting.get()
      catch {
        case error: ExecutionException =>
          waiting = null
          throw error.getCause
      }
    waiting = null
    window
  }

  /** Waits until nothing is being fetched; whether that came is the matter of `take`. */
  def settle(): Unit =
    if (waiting != null)
      try waiting.get()
      catch { case _: ExecutionException => () }

  override def close(): Unit = {
    thread.shutdownNow()
    // A thread may still write into one of the arrays.
    if (waiting == null || waiting.isDone) buffers.giveBack()
  }

  private def fetch(): Window = {
    if (part == null || fetched == part.range.end) {
      part = nextPart()
      if (part != null) fetched = part.range.start
    }
    if (part == null) null
    else {
      val start = fetched
      // Cut where the Python reader cuts: requests are counted from the range's beginning. But a
      // task has nothing to do until its first window is there, so that comes in two parts.
      val left = settings.windowBytes - ((start - part.range.start) % settings.windowBytes).toInt
      val length = if (isFirst) left / WindowFeed.FirstShare else left
      isFirst = false
      val end = math.min(part.range.end, start + length)
      val target = buffers.other()
      val upTo = math.min(part.range.end, start + WindowFeed.AskedBytesMax)
      reader.read(part.slice.log, start, end, target, WindowBuffers.Headroom, upTo)
      fetched = end
      new Window(part, start, end, target)
    }
  }

  private def nextPart(): Part = {
    while (!parts.hasNext && slices.hasNext) {
      val slice = slices.next()
      val meta = new SegmentMeta(reader, slice, settings)
      val ranges = SegmentMeta.wanted(slice, split.limits, meta)
      val aborted =
        if (settings.readUncommitted || !slice.hasTransactions || ranges.isEmpty)
          AbortedTransactions.None
        else meta.abortedTransactions()
      parts = ranges.iterator.map(Part(slice, _, aborted))
    }
    if (parts.hasNext) parts.next() else null
  }
}

object WindowFeed {
  // Of a task's first window is what comes before the rest.
  private final val FirstShare = 8

  // Of a GET. A query that stops early leaves behind what is on its way, which is far less.
  private final val AskedBytesMax = 64L * 1024 * 1024

  private val threads: ThreadFactory = (work: Runnable) => {
    val made = new Thread(work, "strandline-window")
    made.setDaemon(true)
    made
  }
  private def start(): ExecutorService = Executors.newSingleThreadExecutor(threads)
}

/** The two arrays of a task, with room in front for a batch that was torn. */
final class WindowBuffers(windowBytes: Int) {
  import WindowBuffers._

  private val arrays = new Array[Array[Byte]](2)
  private var turn = 0

  def other(): Array[Byte] = {
    turn ^= 1
    if (arrays(turn) == null) arrays(turn) = IdleWindows.take(Headroom + windowBytes)
    arrays(turn)
  }

  /** Returns the arrays for the next task. The caller must not use them any more. */
  def giveBack(): Unit =
    for (at <- arrays.indices if arrays(at) != null) {
      IdleWindows.give(arrays(at))
      arrays(at) = null
    }
}

object WindowBuffers {
  final val Headroom = 1 << 20
}

/** Arrays between two tasks of this JVM.
  *
  * Of so large an array the JVM has to clear each page, and collects its garbage earlier: 18 MB
  * for each task of 64 MiB. At most IdleMax are kept, and none when memory is short.
  */
object IdleWindows {
  private val IdleMax = 2 * Runtime.getRuntime.availableProcessors
  private val idle = new ArrayDeque[SoftReference[Array[Byte]]]

  /** An array of this length with arbitrary content. */
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
