import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A Hive metastore on an embedded Derby. Hive's own program listens on all addresses. */
public class Metastore {
  public static void main(String[] arguments) throws Exception {
    System.setProperty("javax.jdo.option.ConnectionURL", "jdbc:derby:;databaseName=" + arguments[1] + "/db;create=true");
    System.setProperty("datanucleus.schema.autoCreateAll", "true");
    System.setProperty("hive.metastore.schema.verification", "false");
    System.setProperty("hive.metastore.warehouse.dir", arguments[1] + "/warehouse");
    HiveConf conf = new HiveConf();
    TxnDbUtil.prepDb(conf); // tables of locks, which clients of Iceberg take
    var handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, true);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    new TThreadPoolServer(new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler))).serve();
  }
}
