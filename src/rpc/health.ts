import { create } from '@bufbuild/protobuf';
import { Code, ConnectError, type ServiceImpl } from '@connectrpc/connect';
import {
  HealthCheckResponseSchema,
  HealthListResponseSchema,
  Health as HealthService,
  HealthCheckResponse_ServingStatus as Serving,
} from '../../gen/es/grpc/health/v1/health_pb.js';
import type { Call } from '../service/method.ts';
import { serverDraining } from '../stream/drain.ts';
import { serverStream, unary, type Wire } from './call.ts';

/** Whether this instance takes calls. The same is told by grpc.health.v1 and by `GET /healthz`. */
export class Health {
  readonly #services: ReadonlySet<string>;
  #serving = true;
  readonly #stopped = Promise.withResolvers<void>();

  /** The names of the services; the empty name means the server as a whole. */
  constructor(services: readonly string[]) {
    this.#services = new Set(['', ...services]);
  }

  get serving(): boolean {
    return this.#serving;
  }

  /** NOT_SERVING from here on; watchers are told and let go. Idempotent. */
  stop(): void {
    this.#serving = false;
    this.#stopped.resolve();
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

export function healthService(wire: Wire, health: Health): ServiceImpl<typeof HealthService> {
  const { check, watch, list } = HealthService.method;
  return {
    check: unary(wire, check, 'read', async ({ service }) => {
      const status = health.statusOf(service);
      if (status === undefined)
        throw new ConnectError(`Service "${service}" does not exist on this server.`, Code.NotFound);
      return create(HealthCheckResponseSchema, { status });
    }),

    list: unary(wire, list, 'read', async () => {
      const statuses = create(HealthListResponseSchema);
      for (const service of health.services) {
        statuses.statuses[service] = create(HealthCheckResponseSchema, {
          status: health.statusOf(service) ?? Serving.SERVICE_UNKNOWN,
        });
      }
      return statuses;
    }),

    watch: serverStream(wire, watch, async function* ({ service }, call: Call) {
      const status = () => health.statusOf(service) ?? Serving.SERVICE_UNKNOWN;
      yield create(HealthCheckResponseSchema, { status: status() });
      await Promise.race([health.stopped, gone(call.signal)]);
      if (call.signal.aborted) return;
      if (status() === Serving.NOT_SERVING) yield create(HealthCheckResponseSchema, { status: status() });
      throw serverDraining();
    }),
  };
}

/** Resolves when the caller has gone. */
function gone(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
