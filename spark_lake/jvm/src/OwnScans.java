package strandline.spark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;

import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Gives each scan of format("strandline") a source of its own, at the end of Spark's optimizer.
 *
 *   frame          one PythonDataSourceV2, whose last plan every query over the frame would read
 *   scan as made   filters are taken, nothing is planned; reading it is an error
 *   scan as left   a new PythonDataSourceV2 of the format below, the same filters, a plan of its own
 *
 *   plan           partitions of Python       read by Python's workers; the first says what they are
 *                  a text, and such of those  read by the source inside the JVM, and the rest beside
 *
 * Spark keeps the plan of a Python source beside the frame instead of the query, so filters of one
 * query would hold for the next (see own_scans.py). Which reader takes a plan is the planner's
 * choice (see partitions.py). Compiled by Janino, which knows no generics.
 */
public class OwnScans extends Rule {
  private static final String GIVEN = "strandline";
  private static final String PLANNED = "strandline_planned";
  // An option that only the planner gets; source.py knows it by this name.
  private static final String SLOTS = "taskslots";

  private final java.lang.reflect.Field name;
  private final java.lang.reflect.Field options;
  private final java.lang.reflect.Field filters;

  /** Fails in a Spark whose scans are made of other parts. */
  public OwnScans() throws Exception {
    name = field("shortName");
    options = field("options");
    filters = field("supportedFilters");
  }

  private static java.lang.reflect.Field field(String called) throws Exception {
    java.lang.reflect.Field found = PythonScan.class.getDeclaredField(called);
    found.setAccessible(true);
    return found;
  }

  public TreeNode apply(TreeNode plan) {
    return plan.transformUp(new Owned(this));
  }

  boolean isGiven(Object node) {
    if (!(node instanceof DataSourceV2ScanRelation)) {
      return false;
    }
    Scan scan = ((DataSourceV2ScanRelation) node).scan();
    return scan instanceof PythonScan && GIVEN.equals(value(name, scan));
  }

  Object withOwnScan(Object node) {
    DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) node;
    Object[] parts = new Object[relation.productArity()];
    for (int number = 0; number < parts.length; number++) {
      Object part = relation.productElement(number);
      parts[number] = part == relation.scan() ? own(relation.scan()) : part;
    }
    return relation.makeCopy(parts);
  }

  private Scan own(Scan scan) {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(PLANNED);
    CaseInsensitiveStringMap given = withSlots((CaseInsensitiveStringMap) value(options, scan));
    PythonScanBuilder builder = new PythonScanBuilder(source, PLANNED, scan.readSchema(), given);
    Filter[] taken = (Filter[]) value(filters, scan);
    // Spark does not evaluate these any more: none of them may be refused now.
    if (taken.length > 0 && builder.pushFilters(taken).length > 0) {
      throw new IllegalStateException("strandline took a filter, and then did not");
    }
    return new PlannedScan(source, scan.readSchema(), given, taken);
  }

  /** Splits are cut for the tasks that run at once, which a Python worker cannot ask for. */
  private static CaseInsensitiveStringMap withSlots(CaseInsensitiveStringMap given) {
    SparkSession session = (SparkSession) SparkSession.active();
    Map more = new HashMap(given.asCaseSensitiveMap());
    more.put(SLOTS, String.valueOf(session.sparkContext().defaultParallelism()));
    return new CaseInsensitiveStringMap(more);
  }

  private static Object value(java.lang.reflect.Field field, Object owner) {
    try {
      return field.get(owner);
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  /** The relations above as a partial function. */
  private static class Owned extends scala.runtime.AbstractPartialFunction {
    private final OwnScans rule;

    Owned(OwnScans rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      return rule.isGiven(node);
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      return rule.isGiven(node) ? rule.withOwnScan(node) : otherwise.apply(node);
    }
  }

  /** Bytes of the archive; where nobody told them, Spark takes it for large. */
  private static class Size implements Statistics {
    private final OptionalLong bytes;

    Size(OptionalLong bytes) {
      this.bytes = bytes;
    }

    public OptionalLong sizeInBytes() {
      return bytes;
    }

    public OptionalLong numRows() {
      return OptionalLong.empty();
    }
  }

  /** A scan of a Python source that the source inside the JVM reads, if its plan says so. */
  private static class PlannedScan extends PythonScan implements SupportsReportStatistics {
    private static final String SOURCE = "strandline.spark.ArchiveSource";
    // Before the jar and the plan, each in base64 and with a colon behind it; pickled as they are.
    private static final byte[] MARK =
        "strandline-jvm:".getBytes(StandardCharsets.US_ASCII);
    // Before what Python reads, in words and in base64, and the number of its bytes.
    private static final byte[] TOLD_MARK =
        "strandline-told:".getBytes(StandardCharsets.US_ASCII);
    // Sessions that have the jar; a jar that is added again is passed over.
    private static final int SESSIONS_MAX = 256;
    private static final Set WITH_JAR = Collections.synchronizedSet(new HashSet());

    private Batch batch;
    // What is read of how much, and what that is in bytes of the archive; once it is planned.
    private String told;
    private OptionalLong bytes = OptionalLong.empty();

    PlannedScan(
        PythonDataSourceV2 source,
        org.apache.spark.sql.types.StructType schema,
        CaseInsensitiveStringMap options,
        Filter[] taken) {
      super(source, PLANNED, schema, options, taken);
    }

    /** Columns of the JVM, or rows of Python: known once it is planned. */
    public Scan.ColumnarSupportMode columnarSupportMode() {
      return Scan.ColumnarSupportMode.PARTITION_DEFINED;
    }

    /** What is read of how much, where explain() and the UI show this scan. */
    public String description() {
      toBatch();
      return told == null ? super.description() : told;
    }

    public scala.collection.immutable.Map getMetaData() {
      return (scala.collection.immutable.Map) super.getMetaData().updated("Planned", description());
    }

    /** Without a size Spark would shuffle what it could broadcast. It plans next in any case. */
    public Statistics estimateStatistics() {
      toBatch();
      return new Size(bytes);
    }

    /** Planned once, however often Spark asks. */
    public synchronized Batch toBatch() {
      if (batch == null) {
        batch = planned(super.toBatch());
      }
      return batch;
    }

    private Batch planned(Batch inPython) {
      InputPartition[] all = inPython.planInputPartitions();
      String[] given = all.length == 0 ? null : given(all[0], MARK);
      if (given == null) {
        String[] words = all.length == 0 ? null : given(all[0], TOLD_MARK);
        if (words != null) {
          told = decoded(words[0]) + " (Python)";
          bytes = OptionalLong.of(Long.parseLong(words[1]));
        }
        return inPython;
      }
      SparkSession session = (SparkSession) SparkSession.active();
      String jar = decoded(given[0]);
      if (!WITH_JAR.contains(session.sessionUUID() + jar)) {
        session.sessionState().resourceLoader().addJar(jar);
        if (WITH_JAR.size() >= SESSIONS_MAX) {
          WITH_JAR.clear();
        }
        WITH_JAR.add(session.sessionUUID() + jar);
      }
      Batch inside = inside(session, given[1]);
      told = ((Scan) inside).description();
      bytes = ((SupportsReportStatistics) inside).estimateStatistics().sizeInBytes();
      if (all.length == 1) {
        return inside;
      }
      return beside(inside, inPython, (InputPartition[]) Arrays.copyOfRange(all, 1, all.length));
    }

    /** Without Spark's reader of sources, which looks for them in all that there are, each time. */
    private static Batch inside(SparkSession session, String plan) {
      CaseInsensitiveStringMap options =
          new CaseInsensitiveStringMap(Collections.singletonMap("plan", plan));
      TableProvider source;
      try {
        Class found = session.sharedState().jarClassLoader().loadClass(SOURCE);
        source = (TableProvider) found.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException(error);
      }
      SupportsRead table =
          (SupportsRead) source.getTable(source.inferSchema(options), new Transform[0], options);
      return table.newScanBuilder(options).build().toBatch();
    }

    /** Of classes that only the session knows. */
    private static Batch beside(Batch inside, Batch inPython, InputPartition[] partitions) {
      try {
        Method both =
            inside.getClass().getMethod("beside", new Class[] {Batch.class, InputPartition[].class});
        return (Batch) both.invoke(inside, new Object[] {inPython, partitions});
      } catch (NoSuchMethodException error) {
        throw new IllegalStateException(error);
      } catch (IllegalAccessException error) {
        throw new IllegalStateException(error);
      } catch (InvocationTargetException error) {
        throw new IllegalStateException(error.getCause());
      }
    }

    private static String decoded(String base64) {
      return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    /** The two texts behind the mark, if this is a partition that has it; else null. */
    private static String[] given(InputPartition partition, byte[] mark) {
      byte[] pickled = ((PythonInputPartition) partition).pickedPartition();
      int start = 0;
      while (start <= pickled.length - mark.length
          && !Arrays.equals(pickled, start, start + mark.length, mark, 0, mark.length)) {
        start++;
      }
      if (start > pickled.length - mark.length) {
        return null;
      }
      int first = start + mark.length;
      int second = behindColon(pickled, first);
      int end = behindColon(pickled, second);
      return new String[] {
        new String(pickled, first, second - 1 - first, StandardCharsets.US_ASCII),
        new String(pickled, second, end - 1 - second, StandardCharsets.US_ASCII)
      };
    }

    private static int behindColon(byte[] bytes, int from) {
      int at = from;
      while (bytes[at] != ':') {
        at++;
      }
      return at + 1;
    }
  }
}
