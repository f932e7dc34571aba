package strandline.spark;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
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
 * Spark keeps the plan of a Python source beside the frame instead of the query, so filters of one
 * query would hold for the next (see own_scans.py). Compiled by Janino, which knows no generics.
 */
public class OwnScans extends Rule {
  private static final String GIVEN = "strandline";
  private static final String PLANNED = "strandline_planned";

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
    PythonScanBuilder builder = new PythonScanBuilder(
        source, PLANNED, scan.readSchema(), (CaseInsensitiveStringMap) value(options, scan));
    Filter[] taken = (Filter[]) value(filters, scan);
    // Spark does not evaluate these any more: none of them may be refused now.
    if (taken.length > 0 && builder.pushFilters(taken).length > 0) {
      throw new IllegalStateException("strandline took a filter, and then did not");
    }
    return builder.build();
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
}
