import type {
  DescMessage,
  DescMethod,
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  MessageInitShape,
  MessageShape,
} from '@bufbuild/protobuf';
import type { Caller } from '../domain/caller.ts';
import type { App } from '../stream/app.ts';

/** What a method knows of its call besides the request. */
export interface Call {
  /** The context of this call: its statements end when the call does. */
  readonly app: App;
  readonly caller: Caller;
  /** Aborted when the caller has gone, its deadline has passed, or the call is over. */
  readonly signal: AbortSignal;
}

/** A call whose requests are frames of a stream: its method checks them itself. */
export interface FramesCall extends Call {
  /**
   * Checks a frame as the request of a unary method is checked; steps within it are checked where they are converted.
   * Errors: INVALID_REQUEST.
   */
  readonly check: <Desc extends DescMessage>(schema: Desc, frame: MessageShape<Desc>) => void;
}

/** A unary method: takes the request, whose fields are checked, and returns what its response is made of. */
export type Unary<M extends DescMethodUnary> = (
  request: MessageShape<M['input']>,
  call: Call,
) => Promise<MessageInitShape<M['output']>>;

/** How the messages of a response stream are sent. */
export interface Sending<Message> {
  /** Returns the step from which a reader that did not take a message can continue. */
  readonly resumeAt?: ((message: Message) => bigint | undefined) | undefined;
  /** Returns whether a message takes so long to encode that it waits for a slot (A5). */
  readonly isLarge?: ((message: Message) => boolean) | undefined;
}

/** A method that responds with a stream. */
export interface ServerStream<M extends DescMethodServerStreaming> extends Sending<MessageShape<M['output']>> {
  readonly messages: (request: MessageShape<M['input']>, call: Call) => AsyncGenerator<MessageShape<M['output']>>;
}

/** A method that takes a stream, and returns what its response is made of. */
export type ClientStream<M extends DescMethodClientStreaming> = (
  frames: AsyncIterable<MessageShape<M['input']>>,
  call: FramesCall,
) => Promise<MessageInitShape<M['output']>>;

/** A method that takes a stream and responds with one. */
export type BidiStream<M extends DescMethodBiDiStreaming> = (
  frames: AsyncIterable<MessageShape<M['input']>>,
  call: FramesCall,
) => AsyncGenerator<MessageShape<M['output']>>;

export type Method<M extends DescMethod> = M extends DescMethodUnary
  ? Unary<M>
  : M extends DescMethodServerStreaming
    ? ServerStream<M>
    : M extends DescMethodClientStreaming
      ? ClientStream<M>
      : M extends DescMethodBiDiStreaming
        ? BidiStream<M>
        : never;

/** Some of the methods of a service. */
export type Methods<S extends DescService, Names extends keyof S['method']> = {
  readonly [N in Names]: Method<S['method'][N]>;
};
