import type {
  DescMessage,
  DescMethod,
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  Message,
  MessageInitShape,
  MessageShape,
} from '@bufbuild/protobuf';
import type {
  AppendBatchRequest,
  AppendStepRequest,
  PartErrorSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Principal } from '../domain/caller.ts';
import type { PackedFrame } from '../domain/step_codec/packed_step.ts';
import type { App } from '../stream/app.ts';
import type { EncodedResponse } from './answer/encoded.ts';
import type { PackedRequest } from './trajectory/packed_request.ts';

/** The context of a call: everything but the request. */
export interface Call {
  /** The app within this call: its statements end with the call. */
  readonly app: App;
  readonly caller: Principal;
  /** Aborted when the caller has disconnected, its deadline has passed, or the call has ended. */
  readonly signal: AbortSignal;
  /** Checks a frame like a request, except for its steps, which their conversion checks. Errors: INVALID_REQUEST. */
  readonly check: <Desc extends DescMessage>(schema: Desc, frame: MessageShape<Desc>) => void;
  /** Returns why a part of the request failed, with the field of the part that is wrong. Logs internal errors. */
  readonly errorOf: <Desc extends DescMessage>(
    error: unknown,
    schema: Desc,
    part: MessageShape<Desc>,
  ) => MessageInitShape<typeof PartErrorSchema>;
  /** Must be called when a writer has fenced one of another principal. It is audited. */
  readonly tookOver: (method: DescMethod, trajectoryId: string) => void;
}

/** The steps of unary appends may be packed already. */
type Request<M extends Message> = M extends AppendStepRequest | AppendBatchRequest ? M | PackedRequest<M> : M;

/** A unary method: takes a checked request and returns the initial values of its response. */
export type Unary<M extends DescMethodUnary> = (
  request: Request<MessageShape<M['input']>>,
  call: Call,
) => Promise<MessageInitShape<M['output']>>;

/** A method that responds with a stream of messages, or of encoded responses. */
export interface ServerStream<M extends DescMethodServerStreaming, Sent = MessageShape<M['output']>> {
  readonly messages: (request: MessageShape<M['input']>, call: Call) => AsyncGenerator<Sent>;
  /** Whether encoding a message takes so long that each waits for a slot (A5). */
  readonly isLarge?: boolean;
}

/** A method that takes a stream and returns the initial values of its response. */
export type ClientStream<M extends DescMethodClientStreaming> = (
  frames: AsyncIterable<MessageShape<M['input']>>,
  call: Call,
) => Promise<MessageInitShape<M['output']>>;

/** A method that takes a stream and responds with one. */
export type BidiStream<M extends DescMethodBiDiStreaming, Frame = MessageShape<M['input']>> = (
  frames: AsyncIterable<Frame>,
  call: Call,
) => AsyncGenerator<MessageShape<M['output']>>;

export type Method<M extends DescMethod> = M extends DescMethodUnary
  ? Unary<M>
  : M extends DescMethodServerStreaming
    ? ServerStream<M, MessageShape<M['output']> | EncodedResponse>
    : M extends DescMethodClientStreaming
      ? ClientStream<M>
      : M extends DescMethodBiDiStreaming
        ? BidiStream<M> | BidiStream<M, MessageShape<M['input']> | PackedFrame>
        : never;

/** Some of the methods of a service. */
export type Methods<S extends DescService, Names extends keyof S['method']> = {
  readonly [N in Names]: Method<S['method'][N]>;
};

/** The methods of a noun: some of those of its service. `services.ts` requires that none is missing. */
export type SomeMethods<S extends DescService> = Partial<Methods<S, keyof S['method']>>;
