// A worker and its producer, written with the TypeScript client that @hey-api/openapi-ts makes.
// Run with the URL of a server and a key.
import { client } from './ojs_client/client.gen';
import * as ojs from './ojs_client';

declare const process: { argv: string[] };

const queue = 'typescript';
const worker_id = 'typescript-worker';

function same(found: unknown, wanted: unknown): void {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
  }
}

async function fetched(): Promise<ojs.Job> {
  const { data } = await ojs.fetchJobs({ body: { queues: [queue], worker_id }, throwOnError: true });
  same(data.jobs.length, 1);
  return data.jobs[0]!;
}

async function main(): Promise<void> {
  const [baseUrl, key] = process.argv.slice(2);
  client.setConfig({ baseUrl, auth: key });
  const throwOnError = true as const;

  await ojs.configureQueue({ path: { name: queue }, body: { concurrency: 5 }, throwOnError });
  const made = await ojs.enqueueJob({
    body: { type: 'mail.send', args: [1], options: { queue } }, throwOnError,
  });
  same(made.data.job.state, 'available');
  const job = await fetched();
  same([job.id, job.attempt], [made.data.job.id, 1]);
  const beat = await ojs.heartbeat({ body: { worker_id, active_jobs: [job.id] }, throwOnError });
  same(beat.data.directive, 'running');
  const done = await ojs.ackJob({
    body: { job_id: job.id, worker_id, result: { sent: true } }, throwOnError,
  });
  if (!('state' in done.data)) throw new Error('an answer to many acks');
  same(done.data.state, 'completed');

  const doomed = await ojs.enqueueJob({
    body: { type: 'mail.send', args: [2], options: { queue, retry: { max_attempts: 1 } } },
    throwOnError,
  });
  const failed = await fetched();
  const nacked = await ojs.nackJob({
    body: { job_id: failed.id, error: { type: 'Smtp', message: 'refused' } }, throwOnError,
  });
  if (!('state' in nacked.data)) throw new Error('an answer to many nacks');
  same(nacked.data.state, 'discarded');
  const letters = await ojs.listDeadLetters({ query: { queue }, throwOnError });
  same(letters.data.jobs.map((letter) => [letter.id, letter.error?.type]), [[doomed.data.job.id, 'Smtp']]);
  const back = await ojs.retryDeadLetter({ path: { id: failed.id }, throwOnError });
  same(back.data.job.state, 'available');
  await ojs.ackJob({ body: { job_id: (await fetched()).id }, throwOnError });

  const { error, response } = await ojs.enqueueJob({ body: { type: 'No Type', args: [] } });
  same([response?.status, error?.error.code], [400, 'invalid_request']);
}

// Never called: what the types refuse. The compiler complains where it does not.
export async function refused(): Promise<void> {
  // @ts-expect-error - a misspelt limit
  await ojs.configureQueue({ path: { name: queue }, body: { concurency: 5 } });
  // @ts-expect-error - not a strategy
  await ojs.fetchJobs({ body: { queues: [queue], strategy: 'fastest' } });
  // @ts-expect-error - a job has a type
  await ojs.enqueueJob({ body: { args: [] } });
}

main().catch((error: unknown) => {
  console.error(error);
  throw error;
});
