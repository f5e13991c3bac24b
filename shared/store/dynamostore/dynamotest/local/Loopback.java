import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.server.DynamoDBProxyServer;
import java.lang.reflect.Field;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * DynamoDB Local, in memory, on a free port of 127.0.0.1. By itself it would listen on all interfaces, and it has no
 * setting for that. Prints the port and ends with its standard input, that is with whoever started it.
 */
public final class Loopback {
  public static void main(String[] args) throws Exception {
    DynamoDBProxyServer dynamo =
        ServerRunner.createServerFromCommandLineArgs(new String[] {"-inMemory", "-disableTelemetry", "-port", "8000"});
    Field field = DynamoDBProxyServer.class.getDeclaredField("server");
    field.setAccessible(true);
    Server jetty = (Server) field.get(dynamo);
    for (Connector connector : jetty.getConnectors()) {
      ((ServerConnector) connector).setHost("127.0.0.1");
      ((ServerConnector) connector).setPort(0);
    }
    dynamo.start();
    System.out.println("port " + ((ServerConnector) jetty.getConnectors()[0]).getLocalPort());
    while (System.in.read() >= 0) {}
    Runtime.getRuntime().halt(0);
  }
}
