import { randomBytes } from 'node:crypto';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Health as HealthService } from '../../gen/es/grpc/health/v1/health_pb.js';
import { LIMITS } from '../domain/limits.ts';
import { UnsentMessages } from '../listen/unsent.ts';
import type { DatabaseParts } from '../service/admin/admin.ts';
import type { ServerInfo } from '../service/server/server.ts';
import {
  adminService,
  retentionService,
  rolloutService,
  runService,
  serverService,
  stateService,
  trajectoryService,
} from '../service/services.ts';
import type { App } from '../stream/app.ts';
import type { Logger } from '../stream/settings.ts';
import { createRpcHandler } from './adapter.ts';
import { handlers, type Wire } from './call.ts';
import { CallReports } from './call_report.ts';
import { Calls } from './calls.ts';
import { Gate } from './gate.ts';
import { Health, healthMethods } from './health.ts';
import { type CallHead, type HttpHandler, type HttpRequest, pathOf, type StreamHandler } from './http.ts';
import { type MetricsText, metricsPath } from './metrics.ts';
import { answerProbe, isProbe } from './probes.ts';
import { serveReflection } from './reflection.ts';
import { stateDownloads } from './state_download.ts';
import { createRequestValidator, type Validator } from './validate.ts';

export interface HandlerDeps {
  readonly app: App;
  readonly logger: Logger;
  readonly info: ServerInfo;
  readonly database: DatabaseParts;
  /** See `Probed.isStoreReady`. Default: always. */
  readonly isStoreReady?: () => Promise<boolean>;
  /** Default: none are served. */
  readonly metrics?: MetricsText | undefined;
  /** Default: `createServiceValidator()`. */
  readonly validator?: Validator | undefined;
}

export interface ServiceHandler {
  readonly handle: HttpHandler;
  /** Returns what serves a call of plain gRPC on its stream. Undefined: the call is a request for `handle`. */
  readonly streamHandlerOf: (head: CallHead) => StreamHandler | undefined;
  /** Whether a request only asks for the server's health. */
  readonly isHealthCheck: (request: HttpRequest) => boolean;
  /** Whether it does so by plain HTTP. */
  readonly isProbe: (request: { readonly url?: string | undefined }) => boolean;
  readonly health: Health;
  readonly calls: Readonly<Pick<Calls, 'running'>>;
  /** Bounds what connections have not sent. For all other responses of the port. */
  readonly unsent: UnsentMessages;
}

const HEALTH_RPCS = `/${HealthService.typeName}/`;

function isHealthCheck(request: HttpRequest): boolean {
  return isProbe(request) || pathOf(request).startsWith(HEALTH_RPCS);
}

const SERVICES = [
  TrajectoryService,
  StateService,
  RunService,
  RolloutService,
  RetentionService,
  AdminService,
  ServerService,
  HealthService,
];

/** Compiles the rules of all requests. Servers may share the result. */
export function createServiceValidator(): Validator {
  return createRequestValidator(SERVICES);
}

/** Everything that the port answers: the RPCs, health, reflection, and by GET the health and the bytes of states. */
export function createHandler({
  app,
  logger,
  info,
  database,
  isStoreReady = async () => true,
  metrics,
  validator = createServiceValidator(),
}: HandlerDeps): ServiceHandler {
  const calls = new Calls(app.meter);
  const wire: Wire = { app, logger, calls, validator };
  const health = new Health(SERVICES.map(({ typeName }) => typeName));
  const gate = new Gate(app, logger);
  const unsent = new UnsentMessages(LIMITS.unsentBytesPerConnection, LIMITS.streamsPerConnection * LIMITS.messageBytes);
  const reports = new CallReports(logger, app.tracing, randomBytes(6).toString('base64url'));
  const rpc = createRpcHandler({
    logger,
    reports,
    version: info.version,
    mostValues: info.limits.messageValues,
    gate,
    unsent,
    takeSlot: (namespace) => app.store.slots.take(namespace),
    roomForSteps: ({ caller, load }) => app.waiting.room(caller.actor, load),
    routes: (serve) => {
      serve(TrajectoryService, handlers(wire, TrajectoryService, trajectoryService));
      serve(StateService, handlers(wire, StateService, stateService));
      serve(RunService, handlers(wire, RunService, runService));
      serve(RolloutService, handlers(wire, RolloutService, rolloutService));
      serve(RetentionService, handlers(wire, RetentionService, retentionService));
      serve(AdminService, handlers(wire, AdminService, adminService(database)));
      serve(ServerService, handlers(wire, ServerService, serverService(info)));
      serve(HealthService, handlers(wire, HealthService, healthMethods(health)), true);
      serveReflection(serve, wire, SERVICES);
    },
  });
  const download = stateDownloads({ wire, unsent, gate, reports });
  const scrape = metrics && metricsPath(gate, metrics);
  const handle: HttpHandler = (request, response, intake) => {
    if (download(request, response, intake) || scrape?.(request, response, intake) === true) return;
    if (!isProbe(request)) return rpc.handle(request, response, intake);
    void answerProbe({ health, isStoreReady }, request, response);
  };
  return { handle, streamHandlerOf: rpc.streamHandlerOf, isHealthCheck, isProbe, health, calls, unsent };
}
