import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A device with the JDK alone (17 or newer): java Device.java URL CLIENT_ID KEY [ROUNDS]
 *
 * The model has one float32 tensor "w". The device trains it by logistic regression on points of its own.
 */
public class Device {
    static final int FEATURES = 8, SAMPLES = 200;
    static final HttpClient HTTP =
        HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(10)).build();

    final String url, client, key;
    final double[][] points = new double[SAMPLES][FEATURES];
    final boolean[] labels = new boolean[SAMPLES];

    Device(String url, String client, String key) {
        this.url = url;
        this.client = client;
        this.key = key;
        Random random = new Random(client.hashCode());
        for (int row = 0; row < SAMPLES; row++) {
            for (int column = 0; column < FEATURES; column++) points[row][column] = random.nextGaussian();
            labels[row] = Arrays.stream(points[row]).sum() > 0;
        }
    }

    public static void main(String[] arguments) throws Exception {
        int rounds = arguments.length > 3 ? Integer.parseInt(arguments[3]) : Integer.MAX_VALUE;
        new Device(arguments[0], arguments[1], arguments[2]).run(rounds);
    }

    void run(int rounds) throws Exception {
        report();
        String etag = null;
        for (int done = 0; done < rounds; ) {
            HttpRequest.Builder poll = request(etag == null ? "/assignments" : "/assignments?wait_s=60").GET();
            if (etag != null) poll.header("If-None-Match", etag);
            HttpResponse<byte[]> answer = send(poll);
            long receivedNs = System.nanoTime();
            if (answer.statusCode() == 304) continue;
            etag = answer.headers().firstValue("ETag").orElse(null);
            String json = new String(answer.body(), StandardCharsets.UTF_8);
            // Each assignment starts with its kind; a JSON library would be used in a real device.
            for (String assignment : json.split("\\{\"kind\":")) {
                if (assignment.startsWith("\"report\"")) report();
                if (assignment.startsWith("\"train\"") && takePart(assignment, receivedNs)) done++;
            }
        }
    }

    void report() throws Exception {
        String json = "{\"client_id\": \"" + client + "\", \"throughput_bps\": 8000000, "
            + "\"compute_samples_per_s\": 10000, \"data_samples\": " + SAMPLES + "}";
        send(request("/reports").header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(json)));
    }

    boolean takePart(String assignment, long receivedNs) throws Exception {
        String round = "/rounds/" + text(assignment, "round_id");
        byte[] model = send(request(round + "/model").GET()).body();
        if (!HexFormat.of().formatHex(sha256(model)).equals(text(assignment, "model_digest"))) return false;
        int epochs = (int) number(assignment, "local_epochs");
        double rate = number(assignment, "learning_rate") / number(assignment, "batch_size");
        byte[] update = train(model, epochs, rate);
        long startsNs = receivedNs + (long) (number(assignment, "starts_in_s") * 1e9);
        Thread.sleep(Math.max((startsNs - System.nanoTime()) / 1_000_000, 0));
        String digest = "sha-256=:" + Base64.getEncoder().encodeToString(sha256(update)) + ":";
        String name = URLEncoder.encode(client, StandardCharsets.UTF_8).replace("+", "%20");
        HttpResponse<byte[]> answer = send(request(round + "/updates/" + name)
            .header("Content-Type", "application/octet-stream")
            .header("Content-Digest", digest)
            .header("Fedcs-Data-Samples", String.valueOf(SAMPLES))
            .PUT(HttpRequest.BodyPublishers.ofByteArray(update)));
        System.out.println(answer.statusCode() + " " + new String(answer.body(), StandardCharsets.UTF_8));
        return answer.statusCode() == 201 || answer.statusCode() == 200;
    }

    /** Train in place: the file keeps its header, and only the floats after it change. */
    byte[] train(byte[] model, int epochs, double rate) {
        ByteBuffer file = ByteBuffer.wrap(model.clone()).order(ByteOrder.LITTLE_ENDIAN);
        int data = 8 + (int) file.getLong(0);
        float[] weights = new float[FEATURES];
        for (int column = 0; column < FEATURES; column++) weights[column] = file.getFloat(data + 4 * column);
        for (int epoch = 0; epoch < epochs; epoch++) {
            for (int row = 0; row < SAMPLES; row++) {
                double guess = 0;
                for (int column = 0; column < FEATURES; column++) guess += weights[column] * points[row][column];
                double error = (guess > 0 ? 1 : 0) - (labels[row] ? 1 : 0);
                for (int column = 0; column < FEATURES; column++) weights[column] -= rate * error * points[row][column];
            }
        }
        for (int column = 0; column < FEATURES; column++) file.putFloat(data + 4 * column, weights[column]);
        return file.array();
    }

    HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(url + path)).timeout(Duration.ofSeconds(90))
            .header("Authorization", "Bearer " + key);
    }

    /** Send until it is answered; 429 and 503 say when to try again. */
    HttpResponse<byte[]> send(HttpRequest.Builder request) throws Exception {
        while (true) {
            try {
                HttpResponse<byte[]> answer = HTTP.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
                if (answer.statusCode() != 429 && answer.statusCode() != 503) return answer;
                Thread.sleep(1000 * answer.headers().firstValueAsLong("Retry-After").orElse(1));
            } catch (java.io.IOException broken) {
                Thread.sleep(1000);
            }
        }
    }

    static byte[] sha256(byte[] content) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(content);
    }

    static String text(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\\s*\"([^\"]*)\"").matcher(json);
        return found.find() ? found.group(1) : "";
    }

    static double number(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\":\\s*(-?[0-9.eE+-]+)").matcher(json);
        return found.find() ? Double.parseDouble(found.group(1)) : 0;
    }
}
