-- 0003: history takes a payload as live_jobs holds it. The server compressed it when the job was added, if
-- that made it smaller; to try again with a large payload costs more than all the rest of the job's end.
-- breaking: no

alter table finished_jobs alter payload set storage external;
