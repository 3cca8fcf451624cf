import type { DescMethod } from '@bufbuild/protobuf';
import { Code, type ContextValues, createContextKey, createContextValues } from '@connectrpc/connect';
import { ANONYMOUS, type Caller, parseNamespace } from '../domain/caller.ts';
import type { Logger } from '../stream/settings.ts';

/** Who calls (N1): set before any handler runs, from the credential once there is one. */
const CALLER = createContextKey<Caller>(ANONYMOUS, { description: 'who calls' });

/** Ends a stream whose reader does not read, so that no response can reach it. */
const CUT = createContextKey<() => void>(() => undefined, { description: 'cuts the stream' });

/** Called when a message has reached its handler or cannot be decoded: its slot in the decode queue ends. */
const HAND_OVER = createContextKey<() => void>(() => undefined, { description: 'ends the slot of a message' });

/** Every call passes here before its handler runs. Throws INVALID_REQUEST if the caller's namespace is none. */
export function contextValues(caller: Caller, cut: () => void, handOver: () => void): ContextValues {
  parseNamespace(caller.namespace);
  return createContextValues().set(CALLER, caller).set(CUT, cut).set(HAND_OVER, handOver);
}

export function callerOf(values: ContextValues): Caller {
  return values.get(CALLER);
}

export function cutOf(values: ContextValues): () => void {
  return values.get(CUT);
}

export function handOverOf(values: ContextValues): () => void {
  return values.get(HAND_OVER);
}

/** Logs one line per call, without its contents. `code` is undefined if the call succeeded. */
export function logCall(
  logger: Logger,
  { name, parent }: DescMethod,
  protocol: string,
  code: Code | undefined,
  begunAt: number,
): void {
  const ms = Math.round((performance.now() - begunAt) * 100) / 100;
  const line = { rpc: `${parent.typeName}/${name}`, protocol, code: code === undefined ? 'ok' : Code[code], ms };
  logger.debug(line, 'call');
}
