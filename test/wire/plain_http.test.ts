import { create, createFileRegistry, fromBinary } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema, FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Health, HealthCheckResponse_ServingStatus as Serving } from '../../gen/es/grpc/health/v1/health_pb.js';
import { ServerReflection as V1 } from '../../gen/es/grpc/reflection/v1/reflection_pb.js';
import { ServerReflection as V1Alpha } from '../../gen/es/grpc/reflection/v1alpha/reflection_pb.js';
import { COMMANDS } from '../../src/rpc/refusal.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { speak } from './raw.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const SERVICES = [
  AdminService,
  RetentionService,
  RolloutService,
  RunService,
  ServerService,
  StateService,
  TrajectoryService,
];
const rpc = (method: string) => `${server.url}/anabranch.v1.TrajectoryService/${method}`;

async function postJson(method: string, body: unknown): Promise<{ status: number; answer: Record<string, unknown> }> {
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(rpc(method), { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, answer: (await response.json()) as Record<string, unknown> };
}

describe('HTTP/1.1 without a generated client', () => {
  it('GET /healthz returns 200 ok', async () => {
    const response = await fetch(`${server.url}/healthz?verbose`);
    expect([response.status, await response.text()]).toEqual([200, 'ok']);
    expect((await fetch(`${server.url}/healthz`, { method: 'HEAD' })).status).toBe(200);
    expect((await fetch(`${server.url}/healthz`, { method: 'POST' })).status).toBe(405);
  });

  it.each(['/healthz', '/health', '/livez', '/readyz'])(
    'GET %s answers load balancers, which send HTTP/1.0 or no Host',
    async (path) => {
      for (const head of [
        `GET ${path} HTTP/1.0`,
        `GET ${path} HTTP/1.0\r\nConnection: keep-alive`,
        `GET ${path} HTTP/1.0\r\nHost: 127.0.0.1`,
        `GET ${path} HTTP/1.1\r\nConnection: close`,
        `GET ${path}?probe HTTP/1.1\r\nHost:\r\nConnection: close`,
      ]) {
        expect(await speak(server.port, `${head}\r\n\r\n`, 200), head).toMatch(/^HTTP\/1\.1 200 OK\r\n.*\r\n\r\nok$/s);
      }
      expect(await speak(server.port, `HEAD ${path} HTTP/1.0\r\n\r\n`)).toMatch(/^HTTP\/1\.1 200 OK\r\n.*\r\n\r\n$/s);
      expect((await fetch(server.url + path)).status).toBe(200);
    },
  );

  it('every other request needs a Host, and a probe must not name a foreign one', async () => {
    for (const path of ['/', '/healthz/', '/healthzz', '/grpc.health.v1.Health/Check', '/states/a', '/docs']) {
      for (const version of ['1.0', '1.1']) {
        const said = await speak(server.port, `GET ${path} HTTP/${version}\r\nConnection: close\r\n\r\n`);
        expect(said, path).toMatch(/^HTTP\/1\.1 400 /);
      }
    }
    const foreign = 'GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n';
    expect(await speak(server.port, foreign)).toMatch(/^HTTP\/1\.1 421 /);
    const absolute = 'GET http://evil.example/healthz HTTP/1.0\r\n\r\n';
    expect(await speak(server.port, absolute)).toMatch(/^HTTP\/1\.1 400 /);
  });

  it('FM1, FM2, FM5: JSON requests and answers: step numbers are strings, and zero values are present', async () => {
    const made = await postJson('CreateTrajectory', { root: { observations: [{ content: { json: '1' } }] } });
    expect(made).toMatchObject({
      status: 200,
      answer: { trajectory: { nextStepNumber: '1', writerEpoch: '0', rewardSum: 0 } },
    });
    const { id } = (made.answer as { trajectory: { id: string } }).trajectory;
    const step = { stepNumber: '1', reward: 'NaN', metrics: { inf: 'Infinity' } };
    expect(await postJson('AppendStep', { trajectoryId: id, step })).toMatchObject({
      status: 200,
      answer: { nextStepNumber: '2', duplicate: false },
    });
    const found = await postJson('GetStep', { trajectoryId: id, stepNumber: 1 });
    expect(found.answer).toMatchObject({ trajectoryId: id, step: { ...step, terminated: false, states: [] } });
  });

  it('a Connect GET reads without a body', async () => {
    const { answer } = await postJson('CreateTrajectory', { name: 'by GET' });
    const { id } = (answer as { trajectory: { id: string } }).trajectory;
    const query = new URLSearchParams({
      connect: 'v1',
      encoding: 'json',
      message: JSON.stringify({ trajectoryId: id }),
    });
    const response = await fetch(`${rpc('GetTrajectory')}?${query}`);
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ trajectory: { id, name: 'by GET' } });
  });

  it('FM6: errors are JSON with a code, a message and the reason', async () => {
    const { status, answer } = await postJson('GetTrajectory', { trajectoryId: 'x' });
    expect(status).toBe(400);
    expect(answer).toMatchObject({
      code: 'invalid_argument',
      message: expect.stringContaining('trajectory_id'),
      details: [
        { debug: { reason: 'INVALID_REQUEST' } },
        { debug: { fieldViolations: [{ field: 'trajectory_id' }] } },
        { type: 'google.rpc.RequestInfo' },
      ],
    });
  });

  it('a bidirectional stream is UNIMPLEMENTED, and the error names the alternative', async () => {
    const response = await fetch(rpc('AppendSteps'), {
      method: 'POST',
      headers: { 'content-type': 'application/connect+json' },
      body: '',
    });
    expect(response.status).toBe(505);
    expect(await response.json()).toMatchObject({
      code: 'unimplemented',
      message: expect.stringContaining('AppendStep'),
    });
  });

  const streams = SERVICES.flatMap(({ methods }) => methods).filter(({ methodKind }) => methodKind !== 'unary');

  it.each(streams.map((method) => [`${method.parent.typeName}/${method.name}`, method] as const))(
    'JSON without envelopes is refused by %s, and the error says that it streams, and how to call it',
    async (path, { name, parent, methodKind }) => {
      const overHttp1 = methodKind !== 'bidi_streaming';
      for (const type of ['application/json', 'application/x-www-form-urlencoded']) {
        const headers = { 'content-type': type };
        const response = await fetch(`${server.url}/${path}`, { method: 'POST', headers, body: '{}' });
        expect(response.status).toBe(overHttp1 ? 415 : 505);
        const { message } = (await response.json()) as { message: string };
        expect(message).toContain(overHttp1 ? `${name} streams messages` : `${name} is a bidirectional stream`);
        if (!overHttp1) continue;
        expect(message).toContain('application/connect+json');
        expect(message).toContain(COMMANDS[`${parent.name}/${name}`] ?? 'grpcurl');
      }
    },
  );

  it.each(['{}', '{', ' {}', '{"trajectoryId": "0199aaaa-0000-7000-8000-000000000001"}'])(
    'a stream whose first message %j has no envelope is refused with the form of one',
    async (body) => {
      const headers = { 'content-type': 'application/connect+json' };
      const response = await fetch(rpc('ReadSteps'), { method: 'POST', headers, body });
      const { error } = JSON.parse((await response.text()).slice(5)) as { error: object };
      expect(error).toMatchObject({
        code: 'invalid_argument',
        message: expect.stringMatching(/begins without an envelope. Each message begins with 5 bytes/),
        details: [{ debug: { reason: 'INVALID_REQUEST' } }, { type: 'google.rpc.RequestInfo' }],
      });
    },
  );

  it('two requests share a connection, also after one was refused before its body was read', async () => {
    const big = { trajectoryId: 'x', step: { infoJson: 'x'.repeat(2_000_000) } };
    for (let i = 0; i < 3; i += 1) {
      expect(await postJson('AppendStep', big)).toMatchObject({ status: 429, answer: { code: 'resource_exhausted' } });
      expect(await postJson('CreateTrajectory', {})).toMatchObject({ status: 200 });
    }
  });
});

describe('grpc.health.v1', () => {
  it('reports the server and each service, and NOT_FOUND for others', async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: server.url }));
    for (const service of [
      '',
      'anabranch.v1.TrajectoryService',
      'anabranch.v1.StateService',
      'grpc.health.v1.Health',
    ]) {
      expect((await health.check({ service })).status, service).toBe(Serving.SERVING);
    }
    const error = ConnectError.from(await health.check({ service: 'no.Such' }).catch((thrown: unknown) => thrown));
    expect(error.code).toBe(Code.NotFound);
    const { statuses } = await health.list({});
    expect(Object.keys(statuses)).toContain('anabranch.v1.TrajectoryService');
    for await (const { status } of health.watch({ service: 'no.Such' })) {
      expect(status).toBe(Serving.SERVICE_UNKNOWN);
      break;
    }
  });
});

describe.each([
  ['v1', V1],
  ['v1alpha', V1Alpha],
] as const)('server reflection %s', (_version, service) => {
  type Question = {
    case: 'listServices' | 'fileContainingSymbol' | 'fileByFilename' | 'allExtensionNumbersOfType';
    value: string;
  };

  async function ask(
    ...questions: (
      | Question
      | { case: 'fileContainingExtension'; value: { containingType: string; extensionNumber: number } }
    )[]
  ) {
    // Both versions have the same fields, which this suite relies on.
    const client = createClient(service as typeof V1, createGrpcTransport({ baseUrl: server.url }));
    const answers = [];
    async function* requests() {
      for (const messageRequest of questions) yield { messageRequest };
    }
    for await (const { messageResponse } of client.serverReflectionInfo(requests())) answers.push(messageResponse);
    return answers;
  }

  it('lists the services', async () => {
    const [answer] = await ask({ case: 'listServices', value: '' });
    const names = answer?.case === 'listServicesResponse' ? answer.value.service.map(({ name }) => name) : [];
    expect(names).toEqual(
      expect.arrayContaining(['anabranch.v1.TrajectoryService', 'anabranch.v1.StateService', 'grpc.health.v1.Health']),
    );
  });

  it.each([
    'anabranch.v1.TrajectoryService',
    'anabranch.v1.TrajectoryService.AppendSteps',
    'anabranch.v1.Step',
    'anabranch.v1.Step.step_number',
    'anabranch.v1.Status',
  ])('returns the file of %s with all its dependencies: enough to build the schema from nothing', async (symbol) => {
    const [answer] = await ask({ case: 'fileContainingSymbol', value: symbol });
    if (answer?.case !== 'fileDescriptorResponse') throw new Error(`answered ${answer?.case}`);
    const file = answer.value.fileDescriptorProto.map((bytes) => fromBinary(FileDescriptorProtoSchema, bytes));
    const registry = createFileRegistry(create(FileDescriptorSetSchema, { file: file.toReversed() }));
    const owner = symbol.replace(/\.[^.]+$/, '');
    expect(registry.get(symbol) ?? registry.get(owner)).toBeDefined();
    expect(file.map(({ name }) => name)).toEqual([...new Set(file.map(({ name }) => name))]);
  });

  it('answers unknown names with an error message, and the stream continues', async () => {
    const answers = await ask(
      { case: 'fileContainingSymbol', value: 'no.Such' },
      { case: 'fileByFilename', value: 'no/such.proto' },
      { case: 'fileContainingExtension', value: { containingType: 'anabranch.v1.Step', extensionNumber: 1 } },
      { case: 'allExtensionNumbersOfType', value: 'no.Such' },
      { case: 'fileByFilename', value: 'anabranch/v1/trajectory.proto' },
      {
        case: 'fileContainingExtension',
        value: { containingType: 'google.protobuf.FieldOptions', extensionNumber: 1159 },
      },
      { case: 'allExtensionNumbersOfType', value: 'google.protobuf.FieldOptions' },
    );
    expect(answers.map((answer) => answer.case)).toEqual([
      'errorResponse',
      'errorResponse',
      'errorResponse',
      'errorResponse',
      'fileDescriptorResponse',
      'fileDescriptorResponse',
      'allExtensionNumbersResponse',
    ]);
    expect(answers[0]).toMatchObject({
      value: { errorCode: Code.NotFound, errorMessage: expect.stringContaining('no.Such') },
    });
  });
});
