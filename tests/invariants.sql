-- Every test ends with this. Each row returned is a violation; what they are and why: sql/functions/87_doctor.sql.
select * from _invariants();
