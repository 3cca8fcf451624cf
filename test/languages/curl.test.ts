import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { run } from './run.ts';

/** The result of curl: the HTTP status and the JSON of the answer. */
interface Answer {
  readonly status: number;
  readonly body: Record<string, unknown>;
}

const MAIN = '01990000-0000-7000-8000-000000000001';
const BRANCH = '01990000-0000-7000-8000-000000000002';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ engine: 'sqlite' });
});
afterAll(() => server.stop());

async function curl(args: string[]): Promise<Answer> {
  const printed = await run('curl', [
    '--silent',
    '--show-error',
    '--http1.1',
    '--write-out',
    '\n%{http_code}',
    ...args,
  ]);
  const end = printed.lastIndexOf('\n');
  return { status: Number(printed.slice(end + 1)), body: JSON.parse(printed.slice(0, end)) as Record<string, unknown> };
}

function post(method: string, json: string, service = 'TrajectoryService'): Promise<Answer> {
  const url = `${server.url}/anabranch.v1.${service}/${method}`;
  return curl([url, '--header', 'content-type: application/json', '--data', json]);
}

describe('curl, JSON over HTTP/1.1', () => {
  it('O1, B1: creates, appends, branches, and reads across the branch point', async () => {
    const root = { stepNumber: '0', observations: [{ type: 'reset', content: { json: '{"x": 9007199254740993}' } }] };
    const created = await post(
      'CreateTrajectory',
      JSON.stringify({ trajectoryId: MAIN, requestId: 'r1', name: 'é 🌊', root }),
    );
    expect(created).toMatchObject({
      status: 200,
      body: { trajectory: { id: MAIN, name: 'é 🌊', nextStepNumber: '1' } },
    });
    for (const stepNumber of [1, 2]) {
      const step = { stepNumber, reward: stepNumber, states: [{ data: Buffer.from('s').toString('base64') }] };
      const appended = await post('AppendStep', JSON.stringify({ trajectoryId: MAIN, step }));
      expect(appended).toMatchObject({ status: 200, body: { nextStepNumber: `${stepNumber + 1}`, duplicate: false } });
    }
    const branched = await post(
      'BranchTrajectory',
      JSON.stringify({ trajectoryId: MAIN, stepNumber: 1, branchId: BRANCH }),
    );
    expect(branched).toMatchObject({ status: 200, body: { trajectory: { parentId: MAIN, branchPoint: '1' } } });
    const step = { stepNumber: 2, reward: 'NaN', metrics: { lost: '-Infinity' } };
    await post('AppendStep', JSON.stringify({ trajectoryId: BRANCH, step }));
    const { body } = await post('ListSteps', JSON.stringify({ trajectoryId: BRANCH, view: 'VIEW_FULL' }));
    expect(body.steps).toMatchObject([
      {
        trajectoryId: MAIN,
        step: { stepNumber: '0', observations: [{ content: { json: '{"x": 9007199254740993}' } }] },
      },
      { trajectoryId: MAIN, step: { stepNumber: '1', reward: 1, states: [{ name: 'env', size: '1' }] } },
      { trajectoryId: BRANCH, step: { stepNumber: '2', reward: 'NaN', metrics: { lost: '-Infinity' } } },
    ]);
  });

  it('FM5: zero values are present, and unset values are not', async () => {
    const { body } = await post('GetStep', JSON.stringify({ trajectoryId: MAIN, stepNumber: 0 }));
    expect(body.step).toMatchObject({ stepNumber: '0', terminated: false, actions: [] });
    expect(body.step).not.toHaveProperty('reward');
  });

  it('W14: AppendBatch returns a result or an error for each entry', async () => {
    const entry = (stepNumber: number, id = MAIN) => ({ trajectoryId: id, steps: [{ stepNumber }] });
    const request = { entries: [entry(7), entry(2, BRANCH)] };
    expect(await post('AppendBatch', JSON.stringify(request))).toMatchObject({
      status: 200,
      body: {
        results: [
          { error: { code: 11, reason: 'STEP_GAP', metadata: { next_step_number: '3' }, field: '' } },
          { error: { code: 6, reason: 'STEP_CONFLICT', metadata: { step_number: '2', next_step_number: '3' } } },
        ],
      },
    });
  });

  it('FM5: a misspelt field is refused by name and does not become step 0', async () => {
    const { status, body } = await post('AppendStep', `{"trajectoryId": "${MAIN}", "step": {"stepNumbr": 3}}`);
    expect(status).toBe(400);
    expect(body).toMatchObject({ code: 'invalid_argument', message: expect.stringContaining('stepNumbr') as string });
    expect(reasonOf(body)).toBe('INVALID_REQUEST');
  });

  it('FM6: an error has its reason in JSON, with numbers that are exact above 2^53', async () => {
    const missing = `{"trajectoryId": "${MAIN}", "stepNumber": "9007199254740993"}`;
    const { status, body } = await post('GetStep', missing);
    expect({ status, code: body.code, reason: reasonOf(body) }).toEqual({
      status: 404,
      code: 'not_found',
      reason: 'STEP_NOT_FOUND',
    });
    expect(JSON.stringify(body)).toContain('9007199254740993');
  });

  it('a call without side effects is available as GET too', async () => {
    const message = encodeURIComponent(JSON.stringify({ trajectoryId: BRANCH }));
    const query = `connect=v1&encoding=json&message=${message}`;
    const url = `${server.url}/anabranch.v1.TrajectoryService/GetTrajectory?${query}`;
    expect(await curl([url])).toMatchObject({ status: 200, body: { trajectory: { id: BRANCH, nextStepNumber: '3' } } });
  });

  it('a call with side effects is not available as GET', async () => {
    const query = `connect=v1&encoding=json&message=${encodeURIComponent('{}')}`;
    const url = `${server.url}/anabranch.v1.TrajectoryService/CreateTrajectory?${query}`;
    const status = await run('curl', ['--silent', '--output', '/dev/null', '--write-out', '%{http_code}', url]);
    expect(status).toBe('405');
  });

  it('the bidirectional stream, which needs HTTP/2, is refused with the alternative', async () => {
    const url = `${server.url}/anabranch.v1.TrajectoryService/AppendSteps`;
    const { status, body } = await curl([url, '--header', 'content-type: application/connect+json', '--data', '']);
    expect({ status, code: body.code, reason: reasonOf(body) }).toEqual({
      status: 505,
      code: 'unimplemented',
      reason: 'UNIMPLEMENTED',
    });
    expect(body.message).toContain('AppendStep.');
  });

  it('serves /healthz', async () => {
    expect(await run('curl', ['--silent', '--fail', `${server.url}/healthz`])).toContain('ok');
  });
});

/** The reason in the ErrorInfo of a Connect error, whose details have a JSON form for debugging. */
function reasonOf(body: Record<string, unknown>): string | undefined {
  const details = body.details as { type: string; debug?: { reason?: string } }[] | undefined;
  return details?.find(({ type }) => type === 'google.rpc.ErrorInfo')?.debug?.reason;
}
