package strandline.spark

import java.io.IOException

/** Errors of tasks and of the planner; the messages are those of the Python reader.
  *
  * The kinds of `strandline.storage.errors`: 404, 403, an outage and wrong bytes stay four
  * classes. Spark's driver cannot load classes of a session's jar when it hears of a failed task,
  * and would not tell what failed: a task ends with the plain IOException that `forDriver` makes.
  */
class ArchiveException(message: String, cause: Throwable = null)
    extends IOException(message, cause) {
  def forDriver: IOException = {
    val told = new IOException(s"${getClass.getSimpleName}: $getMessage")
    told.setStackTrace(getStackTrace)
    told
  }
}

final class ObjectNotFound(key: String, operation: String, detail: String)
    extends ArchiveException(s"$operation $key: $detail")

final class AccessDenied(key: String, operation: String, detail: String)
    extends ArchiveException(s"$operation $key: $detail")

final class TierUnavailable(
    key: String,
    operation: String,
    detail: String,
    cause: Throwable = null
) extends ArchiveException(s"$operation $key: $detail", cause)

final class ObjectArchived(key: String, operation: String, detail: String)
    extends ArchiveException(s"$operation $key: $detail")

final class ObjectCorrupt(
    key: String,
    operation: String,
    detail: String,
    cause: Throwable = null
) extends ArchiveException(s"$operation $key: $detail", cause)

/** The plan is not one that this source understands: the package and its jar do not fit. */
final class WrongPlan(message: String, cause: Throwable = null)
    extends ArchiveException(message, cause)

/** Bytes that are no record batch. A caller that knows the object raises an ObjectCorrupt. */
final class CorruptRecords(message: String, cause: Throwable = null)
    extends Exception(message, cause)
