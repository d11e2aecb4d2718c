import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import java.util.zip.CRC32;
import org.apache.arrow.flight.CancelFlightInfoRequest;
import org.apache.arrow.flight.CancelStatus;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStatusCode;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.Ticket;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.UInt1Vector;
import org.apache.arrow.vector.complex.FixedSizeListVector;

/**
 * Reads a rank from a sidecar with Apache Arrow's Java client and nothing of Millrace: it lists jobs, reads an epoch, breaks off
 * and goes on by sequence number, and cancels. It prints what it got as one line of JSON.
 */
public final class Interop {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** One batch: its number, its labels and the CRC-32 of the bytes of the column image. */
  private record Batch(long sequence, List<Long> labels, long image) {}

  public static void main(String[] args) throws Exception {
    if (args.length != 2) {
      System.err.println("usage: Interop HOST PORT");
      System.exit(2);
    }
    Location location = Location.forGrpcInsecure(args[0], Integer.parseInt(args[1]));
    try (RootAllocator allocator = new RootAllocator();
        FlightClient client = FlightClient.builder(allocator, location).build()) {
      System.out.println(JSON.writeValueAsString(run(client)));
    }
  }

  private static ObjectNode run(FlightClient client) throws Exception {
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode jobs = answer.putArray("jobs");
    for (FlightInfo info : client.listFlights(Criteria.ALL)) {
      info.getDescriptor().getPath().forEach(jobs::add);
    }
    FlightInfo info = client.getInfo(FlightDescriptor.path(jobs.get(0).asText(), "0"));
    answer.put("endpoints", info.getEndpoints().size());
    byte[] raw = info.getEndpoints().get(0).getTicket().getBytes();
    ObjectNode ticket = (ObjectNode) JSON.readTree(raw);

    write(answer.putArray("whole"), read(client, ticket, batch -> true));
    List<Batch> resumed = read(client, ticket, batch -> batch.sequence() < 1);
    resumed.addAll(read(client, ticket.deepCopy().put("sequence", 2), batch -> true));
    write(answer.putArray("resumed"), resumed);
    answer.put("canceled", canceled(client, ticket, info));
    return answer;
  }

  private static boolean canceled(FlightClient client, ObjectNode ticket, FlightInfo info) throws Exception {
    try {
      read(client, ticket, batch -> {
        if (batch.sequence() > 0) {
          return true;
        }
        return client.cancelFlightInfo(new CancelFlightInfoRequest(info)).getStatus() == CancelStatus.CANCELLED;
      });
      return false;
    } catch (FlightRuntimeException e) {
      return e.status().code() == FlightStatusCode.CANCELLED;
    }
  }

  /** Reads the batches of a ticket until more says that there have been enough. */
  private static List<Batch> read(FlightClient client, ObjectNode ticket, Predicate<Batch> more) throws Exception {
    List<Batch> out = new ArrayList<>();
    byte[] raw = JSON.writeValueAsString(ticket).getBytes(StandardCharsets.UTF_8);
    FlightStream stream = client.getStream(new Ticket(raw));
    try (stream) {
      CRC32 image = new CRC32();
      List<Long> labels = new ArrayList<>();
      while (stream.next()) {
        ArrowBuf buffer = stream.getLatestMetadata();
        var meta = buffer.nioBuffer(0, (int) buffer.capacity()).order(ByteOrder.LITTLE_ENDIAN);
        BigIntVector label = (BigIntVector) stream.getRoot().getVector("label");
        for (int i = 0; i < stream.getRoot().getRowCount(); i++) {
          labels.add(label.get(i));
        }
        var pixels = (UInt1Vector) ((FixedSizeListVector) stream.getRoot().getVector("image")).getDataVector();
        image.update(pixels.getDataBuffer().nioBuffer(0, pixels.getValueCount()));
        if ((meta.get(1) & 4) != 0) { // more rows of this batch follow
          continue;
        }
        Batch batch = new Batch(meta.getLong(48), labels, image.getValue());
        out.add(batch);
        if (!more.test(batch)) {
          stream.cancel("broken off", null);
          return out;
        }
        labels = new ArrayList<>();
        image.reset();
      }
    }
    return out;
  }

  private static void write(ArrayNode to, List<Batch> batches) {
    for (Batch batch : batches) {
      ObjectNode node = to.addObject().put("sequence", batch.sequence());
      batch.labels().forEach(node.putArray("labels")::add);
      node.put("image", batch.image());
    }
  }
}
