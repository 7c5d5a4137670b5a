import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Runs Debezium's engine and sends its records to Kafka. Argument: a file with properties. */
public final class DebeziumToKafka {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            properties.load(reader);
        }
        Properties kafka = new Properties();
        kafka.setProperty("bootstrap.servers", properties.getProperty("kafka.bootstrap.servers"));
        kafka.setProperty("acks", "all");
        kafka.setProperty("compression.type", properties.getProperty("kafka.compression.type", "none"));
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(kafka, new StringSerializer(), new StringSerializer());
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    System.err.println("ended: " + success + " " + message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                    System.exit(success ? 0 : 1);
                })
                .notifying((List<ChangeEvent<String, String>> events,
                        DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                    List<Future<?>> sent = new ArrayList<>();
                    for (ChangeEvent<String, String> event : events) {
                        sent.add(producer.send(
                                new ProducerRecord<>(event.destination(), event.key(), event.value())));
                    }
                    producer.flush();
                    for (int i = 0; i < sent.size(); i++) {
                        try {
                            sent.get(i).get();
                        } catch (java.util.concurrent.ExecutionException error) {
                            throw new RuntimeException(error);
                        }
                        committer.markProcessed(events.get(i));
                    }
                    committer.markBatchFinished();
                })
                .build();
        engine.run();
    }
}
