import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { run } from './run.ts';
import { BUF, GRPCURL } from './tools.ts';

const MAIN = '01990000-0000-7000-8000-000000000003';
const SERVICE = 'anabranch.v1.TrajectoryService';

let server: TestServer;
let address: string;

beforeAll(async () => {
  server = await startTestServer({ engine: 'sqlite' });
  address = `${server.host}:${server.port}`;
  await grpcurl(`${SERVICE}/CreateTrajectory`, `{"trajectory_id": "${MAIN}", "root": {"reward": "NaN"}}`);
});
afterAll(() => server.stop());

/** Calls a method using reflection only. Several messages may follow each other. */
function grpcurl(method: string, messages: string, flags: string[] = []): Promise<string> {
  return run(GRPCURL, ['-plaintext', ...flags, '-d', '@', address, method], { stdin: messages });
}

/** grpcurl prints one JSON object after the other. */
function objects(printed: string): unknown[] {
  return JSON.parse(`[${printed.trim().replaceAll(/\n\}\n\{/gu, '\n},\n{')}]`) as unknown[];
}

describe('grpcurl, by server reflection', () => {
  it('lists the services', async () => {
    const listed = (await run(GRPCURL, ['-plaintext', address, 'list'])).trim().split('\n');
    expect(listed).toEqual(
      expect.arrayContaining([
        'anabranch.v1.StateService',
        'anabranch.v1.TrajectoryService',
        'grpc.health.v1.Health',
        'grpc.reflection.v1.ServerReflection',
        'grpc.reflection.v1alpha.ServerReflection',
      ]),
    );
  });

  it('describes services, methods, messages and enums', async () => {
    const described = async (symbol: string) => run(GRPCURL, ['-plaintext', address, 'describe', symbol]);
    expect(await described(SERVICE)).toContain(
      'rpc AppendSteps ( stream .anabranch.v1.AppendStepsRequest ) returns ( stream .anabranch.v1.AppendStepsResponse ) {\n    option (.anabranch.v1.role) = ROLE_WORK;',
    );
    expect(await described(`${SERVICE}.AppendStep`)).toContain('AppendStepRequest');
    expect(await described('anabranch.v1.Step')).toContain('int64 step_number = 1');
    expect(await described('anabranch.v1.Status')).toContain('STATUS_RUNNING = 3');
  });

  it('calls a unary method', async () => {
    const [answer] = objects(await grpcurl(`${SERVICE}/GetStep`, `{"trajectory_id": "${MAIN}", "step_number": 0}`));
    expect(answer).toMatchObject({ trajectoryId: MAIN, step: { reward: 'NaN' } });
  });

  it('W1, W4, W5: appends over the bidirectional stream and seals', async () => {
    const frames = [
      `{"open": {"trajectory_id": "${MAIN}", "writer_id": "grpcurl"}}`,
      '{"steps": [{"step_number": 1, "reward": 1}, {"step_number": 2}]}',
      '{"steps": [{"step_number": 3}], "seal": {"status": "STATUS_COMPLETED", "message": "fin"}}',
    ];
    const answers = objects(await grpcurl(`${SERVICE}/AppendSteps`, frames.join('\n')));
    expect(answers[0]).toMatchObject({ opened: { epoch: '1', nextStepNumber: '1', status: 'STATUS_RUNNING' } });
    expect(answers.at(-1)).toMatchObject({
      sealed: { status: 'STATUS_COMPLETED', message: 'fin', nextStepNumber: '4' },
    });
  });

  it('reads a stream', async () => {
    const answers = objects(
      await grpcurl(`${SERVICE}/ReadSteps`, `{"trajectory_id": "${MAIN}", "start_step_number": 1}`),
    );
    const steps = (answers as { steps?: { stepNumber: string }[] }[]).flatMap((answer) => answer.steps ?? []);
    expect(steps.map((step) => step.stepNumber)).toEqual(['1', '2', '3']);
  });

  it('FM6: shows the details of an error', async () => {
    const refused = grpcurl(`${SERVICE}/GetStep`, `{"trajectory_id": "${MAIN}", "step_number": 9}`);
    await expect(refused).rejects.toThrow(/NotFound[\s\S]*"reason": "STEP_NOT_FOUND"/u);
  });

  it.each(['', 'anabranch.v1.TrajectoryService', 'anabranch.v1.StateService'])(
    'checks the health of "%s"',
    async (service) => {
      const [answer] = objects(await grpcurl('grpc.health.v1.Health/Check', JSON.stringify({ service })));
      expect(answer).toEqual({ status: 'SERVING' });
    },
  );

  it('returns an error for the health of an unknown service', async () => {
    await expect(grpcurl('grpc.health.v1.Health/Check', '{"service": "nobody"}')).rejects.toThrow(/NotFound/u);
  });
});

describe('buf curl, by server reflection', () => {
  const url = () => `${server.url}/${SERVICE}/GetTrajectory`;

  it.each([
    { reflect: 'grpc-v1', protocol: 'grpc' },
    { reflect: 'grpc-v1alpha', protocol: 'grpc' },
    { reflect: 'grpc-v1', protocol: 'grpcweb' },
    { reflect: 'grpc-v1', protocol: 'connect' },
  ])('calls over $protocol with the reflection of $reflect', async ({ reflect, protocol }) => {
    const flags = ['--protocol', protocol, '--http2-prior-knowledge', '--reflect-protocol', reflect];
    const answer = await run(BUF, ['curl', ...flags, '--data', `{"trajectory_id": "${MAIN}"}`, url()]);
    expect(JSON.parse(answer)).toMatchObject({ trajectory: { id: MAIN, status: 'STATUS_COMPLETED' } });
  });
});
