import type { DescMethodUnary, DescService, MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import type { App } from '../app/app.ts';
import type { Caller } from '../domain/caller.ts';

/** What a method knows of its call besides the request. */
export interface Call {
  /** The context of this call: its statements end when the call does. */
  readonly app: App;
  readonly caller: Caller;
  /** Aborted when the caller has gone, its deadline has passed, or the call is over. */
  readonly signal: AbortSignal;
}

/** A unary method: takes the request, whose fields are checked, and returns what its response is made of. */
export type Unary<M extends DescMethodUnary> = (
  request: MessageShape<M['input']>,
  call: Call,
) => Promise<MessageInitShape<M['output']>>;

/** Names of the unary methods of a service. */
export type UnaryNames<S extends DescService> = {
  [N in keyof S['method']]: S['method'][N] extends DescMethodUnary ? N : never;
}[keyof S['method']];

/** Some of the unary methods of a service. */
export type Methods<S extends DescService, Names extends UnaryNames<S>> = {
  readonly [N in Names]: Unary<Extract<S['method'][N], DescMethodUnary>>;
};
