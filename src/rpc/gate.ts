import type { Socket } from 'node:net';
import { type DescMethod, getOption, hasOption } from '@bufbuild/protobuf';
import { Code, type ConnectError } from '@connectrpc/connect';
import { role as roleOption } from '../../gen/es/anabranch/v1/access_pb.js';
import {
  EVERY_NAMESPACE,
  includesRole,
  namespaceDenied,
  type Role,
  roleTooLow,
  unauthenticated,
} from '../domain/access.ts';
import { ANONYMOUS, DEFAULT_NAMESPACE, parseNamespace } from '../domain/caller.ts';
import { AnabranchError } from '../domain/errors.ts';
import { certificateOf } from '../listen/client_certificate.ts';
import { toRole } from '../service/convert/role.ts';
import type { App } from '../stream/app.ts';
import type { Credential } from '../stream/credentials.ts';
import type { Logger, Meter } from '../stream/settings.ts';
import { Refusals } from './audit.ts';
import type { Admission } from './caller.ts';
import { toConnectError } from './errors.ts';
import type { CallHead, Intake } from './http.ts';

/**
 * Decides who calls and whether they may, from the headers alone: before the body is read, a slot is taken or a stream
 * counts (N2). All paths that show data pass here.
 */
export class Gate {
  readonly #credentials: App['credentials'];
  readonly #principals: App['principals'];
  readonly #logger: Logger;
  readonly #refusals: Refusals;
  readonly #meter: Meter;

  /** Without credentials, every caller may do everything. */
  constructor({ credentials, principals, meter }: Pick<App, 'credentials' | 'principals' | 'meter'>, logger: Logger) {
    this.#meter = meter;
    this.#credentials = credentials;
    this.#principals = principals;
    this.#logger = logger;
    this.#refusals = new Refusals(logger);
  }

  /**
   * Returns the admission at once if the credential is known. Errors: UNAUTHENTICATED, PERMISSION_DENIED,
   * INVALID_REQUEST (of the namespace), DATABASE_UNAVAILABLE, SERVER_DRAINING (of a connection that has to end).
   */
  admit(
    head: CallHead,
    needed: Role,
    socket: GatedCall['socket'],
    named = namespaceOf(head),
  ): Admission | Promise<Admission> {
    if (this.#credentials === undefined) {
      return { caller: named === undefined ? ANONYMOUS : { ...ANONYMOUS, namespace: named }, credential: undefined };
    }
    const secret = secretOf(head);
    // With a header, the certificate of the connection does not count.
    const credential =
      secret === undefined
        ? this.#credentials.ofCertificate(certificateOf(socket()))
        : this.#credentials.of(secret, () => addressOf(socket()));
    return credential instanceof Promise
      ? credential.then((found) => admissionOf(found, named, needed))
      : admissionOf(credential, named, needed);
  }

  /**
   * Calls `serve` once the caller is admitted and its call counts, or refuses the call. `needed` is undefined for what
   * shows no data. `namespace`: the one that the call is about. Default: the one that it names. Errors: those that
   * `serve` throws at once.
   */
  pass(
    head: CallHead,
    needed: Role | undefined,
    call: GatedCall,
    serve: (admission: Admission) => void,
    namespace?: string,
  ): void {
    if (needed === undefined) {
      serve(OPEN);
      return;
    }
    const admitted = (uncounted: Admission) => {
      let admission: Admission;
      try {
        admission = this.#counted(uncounted, call);
      } catch (error) {
        refuse(error);
        return;
      }
      call.intake.isOf(admission.caller.actor, admission.credential !== undefined);
      serve(admission);
    };
    const refuse = (error: unknown) => {
      const told = toConnectError(error, 'read', this.#logger);
      if (AUDITED.has(told.code)) {
        this.#meter.refused();
        this.#refusals.refused(addressOf(call.socket()), told);
      }
      call.refuse(told);
    };
    let admission: Admission | Promise<Admission>;
    try {
      admission = this.admit(head, needed, call.socket, namespace);
    } catch (error) {
      refuse(error);
      return;
    }
    if (!(admission instanceof Promise)) {
      admitted(admission);
      return;
    }
    admission.then(admitted, refuse).catch((error: unknown) => {
      this.#logger.error({ err: error }, 'a request could not be handled');
      call.cut();
    });
  }

  /**
   * Counts a call until it ends. A credential with open calls stays known, so that its streams end with it. Errors:
   * CALLER_LIMIT.
   */
  #counted(admission: Admission, { onEnd }: GatedCall): Admission {
    const { caller, credential } = admission;
    if (credential === undefined) return admission;
    const { load, leave } = this.#principals.enter(caller.actor);
    credential.calls += 1;
    onEnd(() => {
      credential.calls -= 1;
      leave();
    });
    return { caller, credential, load };
  }
}

/** A call before the gate, by either path. */
interface GatedCall {
  /** Of its connection. Undefined: it has ended. */
  readonly socket: () => Socket | undefined;
  readonly refuse: (error: ConnectError) => void;
  readonly cut: () => void;
  /** Calls the listener when the call ends, or at once if it has ended. */
  readonly onEnd: (listener: () => void) => void;
  readonly intake: Pick<Intake, 'isOf'>;
}

/** Empty on a Unix socket, and if the connection has ended. */
function addressOf(socket: Socket | undefined): string {
  return socket?.remoteAddress ?? '';
}

/** Codes of refusals that are audited. */
const AUDITED: ReadonlySet<Code> = new Set([Code.Unauthenticated, Code.PermissionDenied]);

const OPEN: Admission = { caller: ANONYMOUS, credential: undefined };

function admissionOf(credential: Credential, named: string | undefined, needed: Role): Admission {
  const { name: actor, role, namespaces } = credential.identity;
  if (!includesRole(role, needed)) throw roleTooLow(needed, role);
  const namespace = named ?? ownNamespace(namespaces, role);
  if (!namespaces.includes(EVERY_NAMESPACE) && !namespaces.includes(namespace)) throw namespaceDenied(namespace);
  const ownClaimsOnly = !includesRole(role, 'WRITE');
  return { caller: { namespace, actor, role, namespaces, ownClaimsOnly }, credential };
}

/** The namespace of a call that names none. */
function ownNamespace(namespaces: readonly string[], role: Role): string {
  const [only] = namespaces;
  if (namespaces.length === 1 && only !== undefined && only !== EVERY_NAMESPACE) return only;
  if (role === 'ADMIN') return DEFAULT_NAMESPACE;
  throw new AnabranchError(
    'INVALID_REQUEST',
    `The credential is for several namespaces: name one of them in the header ${NAMESPACE_HEADER}.`,
  );
}

const NAMESPACE_HEADER = 'anabranch-namespace';

function namespaceOf({ headers }: CallHead): string | undefined {
  const named = headers[NAMESPACE_HEADER];
  return named === undefined ? undefined : parseNamespace(String(named));
}

/** Undefined without a header. Header values are as long as the port admits. */
function secretOf({ headers: { authorization }, rawHeaders }: CallHead): string | undefined {
  if (authorization === undefined) return undefined;
  // Node keeps the first of several.
  if (countOf(rawHeaders, 'authorization') > 1) throw unauthenticated('repeated');
  const [, secret] = /^Bearer +(\S+)$/i.exec(authorization) ?? [];
  if (secret === undefined) throw unauthenticated('malformed');
  return secret;
}

/** Returns how often a header came, whose name is in lower case. */
function countOf(rawHeaders: readonly string[], name: string): number {
  let count = 0;
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const each = rawHeaders[i]!;
    if (each.length === name.length && each.toLowerCase() === name) count += 1;
  }
  return count;
}

/** Returns the role that a method declares. Throws if it declares none: then nobody could tell who may call it. */
export function roleOf(method: DescMethod): Role {
  const needed = hasOption(method, roleOption) ? toRole(getOption(method, roleOption)) : undefined;
  if (needed === undefined) throw new Error(`${method.parent.typeName}/${method.name} declares no role`);
  return needed;
}
