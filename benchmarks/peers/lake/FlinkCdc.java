import java.io.FileReader;
import java.util.Properties;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Flink CDC from MySQL into an upsert topic of Kafka, in a cluster within this process.
 *
 * <p>Argument: a file with the properties {@code host}, {@code port}, {@code user}, {@code kafka}, {@code topic} and
 * {@code checkpoints}.
 */
public final class FlinkCdc {
    private static final String COLUMNS =
            "id BIGINT, customer_id INT, status STRING, amount DECIMAL(12, 2), discount DOUBLE, quantity INT, "
                    + "note STRING, ordered_on DATE, created_at TIMESTAMP(3), updated_at TIMESTAMP(6), "
                    + "PRIMARY KEY (id) NOT ENFORCED";

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            given.load(reader);
        }
        Configuration settings = new Configuration();
        settings.setString("parallelism.default", "2");
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.dir", given.getProperty("checkpoints"));
        settings.setString("table.local-time-zone", "UTC");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.executeSql("CREATE TABLE orders (" + COLUMNS + ") WITH ('connector' = 'mysql-cdc', 'hostname' = '"
                + given.getProperty("host") + "', 'port' = '" + given.getProperty("port") + "', 'username' = '"
                + given.getProperty("user") + "', 'password' = '', 'database-name' = 'shop', 'table-name' = 'orders', "
                + "'server-time-zone' = 'UTC', 'server-id' = '6100-6103', "
                // Its default of 8,096 rows takes five times as long here, and so does its pause between polls.
                + "'scan.incremental.snapshot.chunk.size' = '50000', 'debezium.poll.interval.ms' = '5', "
                + "'debezium.database.ssl.mode' = 'disabled', 'jdbc.properties.useSSL' = 'false', "
                + "'jdbc.properties.allowPublicKeyRetrieval' = 'true')");
        tables.executeSql("CREATE TABLE target (" + COLUMNS + ") WITH ('connector' = 'upsert-kafka', 'topic' = '"
                + given.getProperty("topic") + "', 'properties.bootstrap.servers' = '" + given.getProperty("kafka")
                + "', 'properties.compression.type' = 'lz4', 'key.format' = 'json', 'value.format' = 'json')");
        tables.executeSql("INSERT INTO target SELECT * FROM orders").await();
    }
}
