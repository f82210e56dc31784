import sys; sys.path.insert(0,'/tmp/wt-time')
from redbeat.recurrence import rrule
from datetime import *; from zoneinfo import ZoneInfo; import time
NY=ZoneInfo("America/New_York"); U=timezone.utc
def show(r,start,n=5,tz=NY):
    print(r); a=start
    for _ in range(n):
        a=r.occurrence(a,tz=tz)
        if a is None: print("  None"); break
        print("  ",a.astimezone(tz))
show(rrule("DAILY",dtstart=datetime(2026,1,1,2,30,tzinfo=NY)),datetime(2026,3,6,12,tzinfo=U))
show(rrule("DAILY",dtstart=datetime(2026,1,1,1,30,tzinfo=NY)),datetime(2026,10,30,12,tzinfo=U))
show(rrule("MINUTELY",interval=25,dtstart=datetime(2026,1,1,0,0,tzinfo=NY)),datetime(2026,11,1,4,50,tzinfo=U),8)
show(rrule("HOURLY",interval=5,dtstart=datetime(2026,3,7,0,0,tzinfo=NY)),datetime(2026,3,7,20,50,tzinfo=U),6)
show(rrule("MINUTELY",interval=25,byweekday=6,dtstart=datetime(2026,1,1,0,0,tzinfo=NY)),datetime(2026,11,1,4,50,tzinfo=U),8)
show(rrule("MONTHLY",bymonthday=-1,dtstart=datetime(2026,1,1,0,0,tzinfo=NY),until=datetime(2026,4,1,tzinfo=U)),datetime(2025,11,1,4,50,tzinfo=U),8)
for r in (rrule("DAILY",dtstart=datetime(2020,1,1,2,30,tzinfo=NY)),rrule("MINUTELY",dtstart=datetime(2020,1,1,2,30,tzinfo=NY)),rrule("YEARLY",bymonth=2,bymonthday=30,dtstart=datetime(2020,1,1,2,30,tzinfo=NY)),rrule("WEEKLY",byweekday=[0,1],dtstart=datetime(2020,1,1,2,30,tzinfo=NY)),rrule("MONTHLY",dtstart=datetime(2020,1,1,2,30,tzinfo=NY)), rrule("DAILY",bymonth=2,bymonthday=30,dtstart=datetime(2020,1,1,2,30,tzinfo=NY))):
    t=time.perf_counter(); 
    for _ in range(20): r.occurrence(datetime(2026,10,30,12,tzinfo=U),tz=NY)
    print(r,(time.perf_counter()-t)/20*1e6,"us")
