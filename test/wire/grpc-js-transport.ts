import {
  create,
  type DescMessage,
  type DescMethod,
  type DescMethodStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
} from '@bufbuild/protobuf';
import { ConnectError, type StreamResponse, type Transport, type UnaryResponse } from '@connectrpc/connect';
import * as grpc from '@grpc/grpc-js';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { StatusSchema } from '../../gen/es/google/rpc/status_pb.js';
import { fromPlain, type Plain, toPlain } from './plain.ts';

type Rpc = MethodDefinition<object, object>;
type Stream = grpc.ClientDuplexStream<object, object>;

const SERVICES = ['trajectory', 'state', 'run', 'server'].map((noun) => `anabranch/v1/${noun}_service.proto`);

const definitions = loadSync(SERVICES, {
  includeDirs: ['proto', 'third_party'],
  longs: String,
  bytes: Buffer,
});

/**
 * A Connect transport over @grpc/grpc-js and the codec of @grpc/proto-loader. The cases run unchanged over an
 * implementation of gRPC and protobuf that shares no code with the server.
 */
export function createGrpcJsTransport(
  address: string,
  credentials = grpc.credentials.createInsecure(),
): Transport & { close(): void } {
  const client = new grpc.Client(address, credentials, { 'grpc.max_receive_message_length': -1 });

  function open(method: DescMethod, signal: AbortSignal | undefined, timeoutMs: number | undefined): Stream {
    const rpc = (definitions[method.parent.typeName] as ServiceDefinition)[method.name] as Rpc;
    const options = timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs };
    const call = client.makeBidiStreamRequest(rpc.path, rpc.requestSerialize, rpc.responseDeserialize, options);
    if (signal?.aborted) call.cancel();
    signal?.addEventListener('abort', () => call.cancel(), { once: true });
    return call;
  }

  async function unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    _header: unknown,
    input: MessageInitShape<I>,
  ): Promise<UnaryResponse<I, O>> {
    const call = open(method, signal, timeoutMs);
    call.end(toPlain(method.input, create(method.input, input)));
    const messages: MessageShape<O>[] = [];
    for await (const message of receive<O>(method, call)) messages.push(message);
    if (messages.length !== 1) throw new Error(`${method.name} answered ${messages.length} messages`);
    return { ...common(method), stream: false, method, message: messages[0]! };
  }

  function stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    _header: unknown,
    input: AsyncIterable<MessageInitShape<I>>,
  ): Promise<StreamResponse<I, O>> {
    const call = open(method, signal, timeoutMs);
    send(method, call, input).catch((error: Error) => call.destroy(error));
    return Promise.resolve({ ...common(method), stream: true, method, message: receive<O>(method, call) });
  }

  return { unary, stream, close: () => client.close() };
}

function common(method: DescMethod) {
  return { service: method.parent, header: new Headers(), trailer: new Headers() };
}

async function send(method: DescMethod, call: Stream, input: AsyncIterable<unknown>): Promise<void> {
  for await (const init of input) {
    const message = toPlain(method.input, create(method.input, init as MessageInitShape<DescMessage>));
    await new Promise<void>((resolve) => call.write(message, () => resolve()));
  }
  call.end();
}

async function* receive<O extends DescMessage>(method: DescMethod, call: Stream): AsyncGenerator<MessageShape<O>> {
  try {
    for await (const message of call) yield fromPlain(method.output, message as Plain) as MessageShape<O>;
  } catch (error) {
    throw connectError(error as grpc.ServiceError);
  } finally {
    call.cancel();
  }
}

function connectError(error: grpc.ServiceError): ConnectError {
  if (error.metadata === undefined) throw error;
  const result = new ConnectError(error.details, error.code as number, undefined, undefined, error);
  const [binary] = error.metadata.get('grpc-status-details-bin');
  if (binary === undefined) return result;
  const status = fromBinary(StatusSchema, new Uint8Array(binary as Buffer));
  result.details = status.details.map((any) => ({ type: any.typeUrl.split('/').at(-1)!, value: any.value }));
  return result;
}
