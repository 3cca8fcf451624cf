import type { DescMethod, DescService, Message } from '@bufbuild/protobuf';
import {
  Code,
  ConnectError,
  type ConnectRouterOptions,
  createConnectRouter,
  type HandlerContext,
  type ServiceImpl,
} from '@connectrpc/connect';
import type { UniversalHandler } from '@connectrpc/connect/protocol';
import { universalRequestFromNodeRequest, universalResponseToNodeResponse } from '@connectrpc/connect-node';
import {
  AppendBatchRequestSchema,
  AppendStepRequestSchema,
  AppendStepsRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Role } from '../domain/access.ts';
import { LIMITS } from '../domain/limits.ts';
import type { UnsentMessages } from '../listen/unsent.ts';
import { EncodedResponse } from '../service/answer/encoded.ts';
import type { Logger } from '../stream/settings.ts';
import type { Sent } from './call.ts';
import { type CallReports, REQUEST_ID } from './call_report.ts';
import { type Admission, admissionOf, contextValues, handOverOf, reportOf } from './caller.ts';
import { describeConnectError } from './errors.ts';
import { type Gate, roleOf } from './gate.ts';
import { Reply } from './grpc/reply.ts';
import { isPlain, PlainGrpc, type Served, takesStream, timeoutOf } from './grpc/serve.ts';
import {
  answerOf,
  type CallHead,
  cutCall,
  cutStream,
  type HttpHandler,
  type HttpRequest,
  type HttpResponse,
  hasReadableQuery,
  type Intake,
  isLargeInMemory,
  onceClosed,
  pathOf,
  type StreamHandler,
} from './http.ts';
import { MessageGuard } from './message_guard.ts';
import { refuseCaller, refuseMediaType, refusePath, refuseQuery, refuseVersion } from './refusal.ts';

/** Adds a service with the handlers of its methods, which `call.ts` creates. `isOpen`: they show no data. */
export type Serve = <S extends DescService>(service: S, implementation: ServiceImpl<S>, isOpen?: boolean) => void;

interface Known {
  readonly handler: UniversalHandler;
  readonly served: Served;
  /** Undefined: no credential. */
  readonly needed: Role | undefined;
}

interface AdapterOptions {
  readonly routes: (serve: Serve) => void;
  readonly logger: Logger;
  readonly reports: CallReports;
  /** Version of the server, which errors of unknown RPCs name. */
  readonly version: string;
  readonly gate: Gate;
  /** Bounds what connections have not sent, of all that the server answers. */
  readonly unsent: UnsentMessages;
  /** Waits until an encoded response can be decoded (A5). */
  readonly takeSlot: TakeSlot;
  /** Waits until a message with steps can be decoded (MS3). */
  readonly roomForSteps: (admission: Admission) => Promise<void> | undefined;
  /** Values of one message. */
  readonly mostValues: number;
}

/** The requests with steps. */
const APPENDS: ReadonlySet<string> = new Set(
  [AppendStepRequestSchema, AppendStepsRequestSchema, AppendBatchRequestSchema].map(({ typeName }) => typeName),
);

/** A week. Later deadlines are ignored, because a timer of more than 2^31 ms would fire at once. */
const MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000;
const UNIT_MS: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1000, m: 1, u: 1e-3, n: 1e-6 };

/**
 * A safety limit only: responses are built to stay below 1 MiB, but bytes and control characters are longer in JSON.
 */
const WRITE_MAX_BYTES = 16 * 1024 * 1024;

/** Serves RPCs. Errors outside of a handler get a response, and are logged instead of printed. */
interface RpcHandler {
  /** Serves gRPC, gRPC-Web and Connect, by Connect. */
  readonly handle: HttpHandler;
  /** Returns what serves a call of plain gRPC by the short path. Undefined: `handle` does. */
  readonly streamHandlerOf: (head: CallHead) => StreamHandler | undefined;
}

export function createRpcHandler(options: AdapterOptions): RpcHandler {
  const { routes, logger, reports, version, unsent, takeSlot, roomForSteps, mostValues, gate } = options;
  const guard = new MessageGuard(mostValues);
  const router = createConnectRouter(routerOptions(logger, guard));
  const plain = new PlainGrpc(logger, guard, unsent);
  const admit = ({ input }: DescMethod, intake: Intake, admission: Admission) => {
    if (APPENDS.has(input.typeName)) intake.waitFor(() => roomForSteps(admission));
  };
  const known = new Map<string, Known>();
  routes((service, implementation, isOpen = false) => {
    const answers = implementation as unknown as Answers;
    const before = router.handlers.length;
    router.service(service, forConnect(answers, takeSlot) as unknown as typeof implementation);
    for (const handler of router.handlers.slice(before)) {
      const { requestPath, method } = handler;
      const needed = isOpen ? undefined : roleOf(method);
      known.set(requestPath, { handler, served: { method, answer: answers[method.localName]! }, needed });
    }
  });
  const handle: HttpHandler = (request, response, intake) => {
    const report = reports.begin(request.headers);
    response.setHeader(REQUEST_ID, report.requestId);
    const found = known.get(pathOf(request));
    if (found === undefined) return refusePath(request, response, version);
    const { handler, needed } = found;
    if (handler.method.methodKind === 'bidi_streaming' && request.httpVersionMajor < 2) {
      return refuseVersion(request, response, handler.method.name);
    }
    if (request.method === 'GET' && !hasReadableQuery(request)) return refuseQuery(request, response);
    const call = {
      socket: () => request.socket,
      refuse: (error: ConnectError) => {
        refuseCaller(request, response, report.mark(error));
        report.end(handler.method, undefined, error);
      },
      cut: () => cutCall(request),
      onEnd: (listener: () => void) => onceClosed(answerOf(response), listener),
      intake,
    };
    gate.pass(request, needed, call, (admission) => {
      report.admitted(handler.method);
      if (!takesStream(handler.method)) intake.expectOne();
      admit(handler.method, intake, admission);
      const values = contextValues(admission, call.cut, () => intake.handOver(), report);
      dropEndlessDeadline(request.headers);
      // Throws if the text is not a URL. The port admits only URLs, and responds to errors that are thrown here.
      const universal = universalRequestFromNodeRequest(request, response, undefined, values);
      void guard.guard(universal, handler.method.input, (guarded) =>
        serve(handler, guarded, request, response, intake, unsent, logger),
      );
    });
  };
  const streamHandlerOf = (head: CallHead): StreamHandler | undefined => {
    const { headers } = head;
    dropEndlessDeadline(headers);
    const found = isPlain(headers) ? known.get(String(headers[':path'] ?? '')) : undefined;
    if (found === undefined) return undefined;
    const { served, needed } = found;
    return (stream, intake) => {
      const report = reports.begin(headers);
      const call = {
        socket: () => stream.session?.socket,
        refuse: (error: ConnectError) => {
          new Reply(stream, unsent, report.requestId).fail(report.mark(error));
          report.end(served.method, undefined, error);
        },
        cut: () => cutStream(stream),
        onEnd: (listener: () => void) => onceClosed(stream, listener),
        intake,
      };
      gate.pass(head, needed, call, (admission) => {
        report.admitted(served.method);
        admit(served.method, intake, admission);
        const values = contextValues(admission, call.cut, () => intake.handOver(), report);
        void plain.serve(served, stream, intake, values, timeoutOf(headers));
      });
    };
  };
  return { handle, streamHandlerOf };
}

type TakeSlot = (namespace: string) => Promise<void> | undefined;
type Answers = Readonly<Record<string, Served['answer']>>;
type ConnectAnswer = (
  input: Message | AsyncIterable<Message>,
  context: HandlerContext,
) => Promise<Message> | AsyncIterable<Message>;

/**
 * Wraps the handlers for Connect: the slot of a message ends when its handler receives it, or an error in place of it,
 * or later if the message is large in memory. All responses are messages.
 */
function forConnect(answers: Answers, takeSlot: TakeSlot): Readonly<Record<string, ConnectAnswer>> {
  const wrapped = Object.entries(answers).map(([name, answer]): [string, ConnectAnswer] => [
    name,
    (input, context) => {
      const handOver = handOverOf(context.values);
      const isStream = Symbol.asyncIterator in input;
      const keepsSlot = !isStream && isLargeInMemory(input);
      if (!isStream && !keepsSlot) handOver();
      const answered = answer(isStream ? eachHandedOver(input, handOver) : input, context);
      if (Symbol.asyncIterator in answered) return eachMessage(answered, context, takeSlot);
      return keepsSlot ? answered.finally(handOver) : answered;
    },
  ]);
  return Object.fromEntries(wrapped);
}

function eachHandedOver(messages: AsyncIterable<Message>, handOver: () => void): AsyncIterable<Message> {
  const inner = messages[Symbol.asyncIterator]();
  const iterator: AsyncIterableIterator<Message> = {
    next: async () => {
      handOver();
      let keepsSlot = false;
      try {
        const result = await inner.next();
        keepsSlot = result.done !== true && isLargeInMemory(result.value);
        return result;
      } finally {
        if (!keepsSlot) handOver();
      }
    },
    return: async (value) => (await inner.return?.(value)) ?? { done: true, value },
    [Symbol.asyncIterator]: () => iterator,
  };
  return iterator;
}

/** JSON needs the messages of encoded responses, which are decoded one at a time (A5). */
function eachMessage(
  responses: AsyncIterable<Sent>,
  { requestHeader, values }: HandlerContext,
  takeSlot: TakeSlot,
): AsyncIterable<Message> {
  const isJson = /json/i.test(requestHeader.get('content-type') ?? '');
  const { namespace } = admissionOf(values).caller;
  const inner = responses[Symbol.asyncIterator]();
  const iterator: AsyncIterableIterator<Message> = {
    next: async () => {
      const { done, value } = await inner.next();
      if (done === true) return { done, value: undefined };
      if (!(value instanceof EncodedResponse)) return { done: false, value };
      if (!isJson) return { done: false, value: value.asUnknown() };
      await takeSlot(namespace);
      return { done: false, value: value.decode() };
    },
    return: async (value) => {
      await inner.return?.(value);
      return { done: true, value };
    },
    [Symbol.asyncIterator]: () => iterator,
  };
  return iterator;
}

async function serve(
  handler: UniversalHandler,
  universal: ReturnType<typeof universalRequestFromNodeRequest>,
  request: HttpRequest,
  response: HttpResponse,
  intake: Intake,
  unsent: UnsentMessages,
  logger: Logger,
): Promise<void> {
  try {
    const answer = await handler(universal);
    // A single message that could not be decoded has never reached its handler.
    if (!takesStream(handler.method)) intake.handOver();
    if (answer.status === 415) return refuseMediaType(request, response, handler.method);
    const { body } = answer;
    const paced = body === undefined ? answer : { ...answer, body: unsent.paced(body, response) };
    await universalResponseToNodeResponse(paced, response);
  } catch (error) {
    // The handler has finished, so writing its response failed, nearly always because the caller has disconnected.
    logger.debug({ err: error, rpc: handler.method.name }, 'a response could not be written');
    cutCall(request);
  }
}

/**
 * Compressed requests are accepted, but responses are not compressed. Most gRPC clients offer gzip by default, and
 * compressing typical content of responses (states, screenshots) would cost the serving thread more than it saves.
 */
const NEVER = Number.MAX_SAFE_INTEGER;

/** Some clients set a deadline of years to mean "no deadline". Connect would set a timer that overflows. */
function dropEndlessDeadline(headers: HttpRequest['headers']): void {
  const [, amount, unit] = /^(\d{1,8})([HMSmun])$/.exec(String(headers['grpc-timeout'] ?? '')) ?? [];
  if (Number(amount) * (UNIT_MS[unit ?? ''] ?? 0) > MAX_TIMEOUT_MS) delete headers['grpc-timeout'];
  if (Number(headers['connect-timeout-ms'] ?? 0) > MAX_TIMEOUT_MS) delete headers['connect-timeout-ms'];
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** Connect reads JSON with this. Its own decoder replaces what is not UTF-8, so that other text would be stored. */
const textDecoder = {
  decode(bytes?: Uint8Array): string {
    try {
      return UTF8.decode(bytes);
    } catch {
      throw new ConnectError('JSON must be valid UTF-8.', Code.InvalidArgument);
    }
  },
};

// FM5: a misspelt field must not be read as 0, and zeros are written.
const JSON_OPTIONS = { ignoreUnknownFields: false, alwaysEmitImplicit: true, textDecoder };

function routerOptions(logger: Logger, guard: MessageGuard): ConnectRouterOptions {
  return {
    acceptCompression: guard.compressions,
    compressMinBytes: NEVER,
    readMaxBytes: LIMITS.messageBytes,
    writeMaxBytes: WRITE_MAX_BYTES,
    maxTimeoutMs: MAX_TIMEOUT_MS,
    jsonOptions: JSON_OPTIONS,
    requestGate: (context) => watchCall(context, logger),
  };
}

/**
 * Runs before a call's body is read. When the call ends, Connect first aborts its signal with the error, if there is
 * one, and then writes the same error. So errors outside of handlers get their details here, and every call is logged
 * here.
 */
function watchCall({ signal, method, values }: HandlerContext, logger: Logger): void {
  const report = reportOf(values);
  const end = () => {
    const error = signal.reason instanceof ConnectError ? signal.reason : undefined;
    if (error !== undefined) {
      describeConnectError(error, logger);
      report?.mark(error);
    }
    report?.end(method, admissionOf(values).caller, error);
  };
  if (signal.aborted) {
    end();
    throw signal.reason;
  }
  signal.addEventListener('abort', end, { once: true });
}
