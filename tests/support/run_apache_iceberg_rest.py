"""Apache Iceberg's own REST catalog on loopback, in a JVM: its servlet over its JDBC catalog.

    python run_apache_iceberg_rest.py JAR PORT NAME=VALUE...         properties of the catalog

The jar is org.apache.iceberg:iceberg-open-api, which `make check-catalogs` brings. Its own program
listens on all addresses, without a login; this one makes the same objects over py4j, and the server
listens on loopback alone. The JVM ends with this process.
"""

from __future__ import annotations

import sys

from py4j.java_gateway import JavaGateway

CATALOG = "org.apache.iceberg.jdbc.JdbcCatalog"


def serve(jar: str, port: int, properties: dict[str, str]) -> None:
    """Serves until this process ends."""
    gateway = JavaGateway.launch_gateway(
        classpath=jar,
        javaopts=["-Xmx512m"],
        die_on_exit=True,
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stderr,
        java_path=None,
    )
    iceberg, jetty = gateway.jvm.org.apache.iceberg, gateway.jvm.org.eclipse.jetty
    given = gateway.jvm.java.util.HashMap()
    for name, value in {"catalog-impl": CATALOG, "jdbc.schema-version": "V1", **properties}.items():
        given.put(name, value)
    configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
    catalog = iceberg.CatalogUtil.buildIcebergCatalog("strandline", given, configuration)
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    context = jetty.servlet.ServletContextHandler()
    context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(gateway.jvm.java.net.InetSocketAddress("127.0.0.1", port))
    server.setHandler(context)
    server.start()
    server.join()


if __name__ == "__main__":
    jar, port, *more = sys.argv[1:]
    serve(jar, int(port), dict(one.split("=", 1) for one in more))
