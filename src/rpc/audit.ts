import { type DescMethod, getOption, type Message, toJson } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { audited } from '../../gen/es/anabranch/v1/access_pb.js';
import type { Principal } from '../domain/caller.ts';
import type { Logger } from '../stream/settings.ts';

/** Who has called what, with what result. A closed set of fields, without content. */
interface AuditLine {
  readonly audit: true;
  readonly rpc: string;
  readonly actor: string;
  readonly namespace: string;
  /** Names of the resources in the request, by field. */
  readonly resources: Readonly<Record<string, unknown>>;
  /** `ok`, or the code of the error. */
  readonly result: string;
}

/** A credential that was refused. */
interface RefusalLine {
  readonly audit: true;
  readonly address: string;
  readonly result: string;
  /** Refusals of this address since its last line, which have none. */
  readonly unlogged: number;
}

export function isAudited(method: DescMethod): boolean {
  return getOption(method, audited);
}

/** Fields with names of resources, and what a key may do. */
const NAMES = /^(name|role|namespaces)$|Id$/;

export function logAudited(
  logger: Logger,
  method: DescMethod,
  { actor, namespace }: Principal,
  request: Message | undefined,
  error: unknown,
): void {
  const rpc = `${method.parent.typeName}/${method.name}`;
  const result = resultOf(error);
  // An invalid request can have anything where names belong.
  const resources = request === undefined || result === Code[Code.InvalidArgument] ? {} : namesIn(method, request);
  const line: AuditLine = { audit: true, rpc, actor, namespace, resources, result };
  logger.info(line, 'an audited call');
}

function namesIn({ input }: DescMethod, request: Message): Record<string, unknown> {
  const fields = Object.entries(toJson(input, request) as Record<string, unknown>);
  return Object.fromEntries(fields.filter(([name]) => NAMES.test(name)));
}

/** A writer that has taken a trajectory over from a writer of another principal. */
export function logTakeOver(
  logger: Logger,
  { parent, name }: DescMethod,
  { actor, namespace }: Principal,
  trajectoryId: string,
): void {
  const rpc = `${parent.typeName}/${name}`;
  const line: AuditLine = { audit: true, rpc, actor, namespace, resources: { trajectoryId }, result: 'ok' };
  logger.info(line, 'a writer took a trajectory over');
}

function resultOf(error: unknown): string {
  return error === undefined ? 'ok' : Code[ConnectError.from(error).code];
}

/** Addresses whose refusals are remembered. */
const MOST_ADDRESSES = 1000;
/** Time between two lines of one address, in milliseconds. */
const LINE_MS = 1000;

/** Logs refused credentials: at most one line for each address and second. */
export class Refusals {
  readonly #logger: Logger;
  readonly #addresses = new Map<string, { loggedAt: number; unlogged: number }>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  refused(address: string, error: ConnectError, now = performance.now()): void {
    const known = this.#addresses.get(address);
    if (known !== undefined && now - known.loggedAt < LINE_MS) {
      known.unlogged += 1;
      return;
    }
    // The address that was logged last is the last one of the map.
    this.#addresses.delete(address);
    if (this.#addresses.size >= MOST_ADDRESSES) {
      for (const oldest of this.#addresses.keys()) if (this.#addresses.delete(oldest)) break;
    }
    this.#addresses.set(address, { loggedAt: now, unlogged: 0 });
    const line: RefusalLine = { audit: true, address, result: Code[error.code], unlogged: known?.unlogged ?? 0 };
    this.#logger.warn(line, 'a credential was refused');
  }
}
