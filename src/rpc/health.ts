import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import {
  HealthCheckResponseSchema,
  type Health as HealthService,
  HealthCheckResponse_ServingStatus as Serving,
} from '../../gen/es/grpc/health/v1/health_pb.js';
import type { Methods } from '../service/method.ts';
import { serverDraining } from '../stream/drain.ts';

/** Whether this instance accepts calls. grpc.health.v1, `GET /healthz` and `GET /health` return the same. */
export class Health {
  readonly #services: ReadonlySet<string>;
  #serving = true;
  readonly #left = Promise.withResolvers<void>();
  readonly #stopped = Promise.withResolvers<void>();

  /** The names of the services. The empty name means the whole server. */
  constructor(services: readonly string[]) {
    this.#services = new Set(['', ...services]);
  }

  get serving(): boolean {
    return this.#serving;
  }

  /** Sets NOT_SERVING permanently, and tells watchers. Idempotent. */
  leave(): void {
    this.#serving = false;
    this.#left.resolve();
  }

  /** Sets NOT_SERVING, and ends the calls of watchers once they know. Idempotent. */
  stop(): void {
    this.leave();
    this.#stopped.resolve();
  }

  /** Resolves when it is NOT_SERVING. */
  get left(): Promise<void> {
    return this.#left.promise;
  }

  get stopped(): Promise<void> {
    return this.#stopped.promise;
  }

  get services(): Iterable<string> {
    return this.#services;
  }

  statusOf(service: string): Serving | undefined {
    if (!this.#services.has(service)) return undefined;
    return this.#serving ? Serving.SERVING : Serving.NOT_SERVING;
  }
}

export function healthMethods(health: Health): Methods<typeof HealthService, 'check' | 'list' | 'watch'> {
  const statusOf = (service: string) => health.statusOf(service) ?? Serving.SERVICE_UNKNOWN;
  const response = (service: string) => create(HealthCheckResponseSchema, { status: statusOf(service) });
  return {
    async check({ service }) {
      if (health.statusOf(service) !== undefined) return response(service);
      throw new ConnectError(`Service "${service}" does not exist on this server.`, Code.NotFound);
    },

    async list() {
      return { statuses: Object.fromEntries([...health.services].map((service) => [service, response(service)])) };
    },

    watch: {
      async *messages({ service }, { signal }) {
        yield response(service);
        if (health.serving) {
          await Promise.race([health.left, aborted(signal)]);
          if (signal.aborted) return;
          if (statusOf(service) === Serving.NOT_SERVING) yield response(service);
        }
        await Promise.race([health.stopped, aborted(signal)]);
        if (signal.aborted) return;
        throw serverDraining();
      },
    },
  };
}

/** Resolves when the signal is aborted. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
